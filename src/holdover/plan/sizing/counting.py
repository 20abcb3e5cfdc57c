"""How many parameters a config stands for, where no file and no catalogue says it.

Matrices and embeddings are counted, norms and biases are not: the result is a little low, by less
than one percent on the models of the catalogue. A structure that is not known gives None, never a
guess; `active` leaves out the experts that a token does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing import Parameters, names
from holdover.geometry.sizing.patterns import layer_count, read_kinds
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.unwrap import text_reader

_INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "inner_dim")
_EXPERT_INNER = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert")
_SHARED_INNER = (
    "shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size",
)  # fmt: skip
_FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "n_dense_layers")
# Types whose feed-forward is two matrices and not three.
_TWO_MATRICES = frozenset(
    ("gpt2", "gpt_bigcode", "gpt_neox", "gpt_neo", "gptj", "codegen", "bloom", "falcon", "mpt",
     "opt", "phi", "starcoder2", "nemotron", "nemotron_h", "persimmon", "t5", "bart", "whisper",
     "arcee", "biogpt", "xglm")
)  # fmt: skip
# Where nothing is said: types whose head is the embedding, and whose inner width is 4 x hidden.
_TIED = frozenset(
    ("gpt2", "gpt_bigcode", "bloom", "falcon", "mpt", "opt", "gpt_neo", "t5", "bart", "whisper")
)
_FOURFOLD = frozenset(
    ("gpt2", "gpt_bigcode", "bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo")
)
# Structures of their own, which nothing here counts.
_UNKNOWN = ("zamba", "recurrent_gemma", "rwkv", "xlstm", "gemma3n", "deepseek_v4", "deepseek_ref",
            "openelm", "nemotron-nas", "decilm", "longcat")  # fmt: skip
_MAMBA = frozenset(("mamba", "falcon_mamba", "mamba2"))
_ATTENTION = frozenset(("full", "sliding", "chunked", "indexed", "cross"))


@dataclass(frozen=True, slots=True)
class Count:
    """Weights in all, and those that one token reads."""

    total: int
    active: int

    def __add__(self, other: Count) -> Count:
        return Count(self.total + other.total, self.active + other.active)


def count_parameters(
    config: Mapping[str, Any], assume: Mapping[str, str] | None = None
) -> Parameters | None:
    """Parameters of the text model; None where its structure is not one of those known here."""
    reader = text_reader(config, dict(assume or {}))
    if reader.model_type.startswith(_UNKNOWN) or reader.get("hidden_size_per_layer_input"):
        return None
    try:
        both = reader.flag("is_encoder_decoder")
        count = _encoder_decoder(reader) if both else _decoder(reader)
    except ConfigError:
        return None  # a field that only this count needs; the cache does not
    return None if count is None else Parameters(count.total, count.active, "formula")


def _decoder(reader: Reader) -> Count | None:
    n_layers = layer_count(reader)
    hidden = reader.integer(*names.HIDDEN)
    vocabulary = reader.integer("vocab_size", "padded_vocab_size", "text_vocab_size")
    tied = _tied(reader)
    # One row of the embedding is read, and all of the head that predicts the next token.
    total = Count(vocabulary * hidden * (1 if tied else 2), vocabulary * hidden)
    alone = reader.model_type == "nemotron_h"  # a layer is a mixer or a feed-forward
    for index, kind in enumerate(read_kinds(reader, n_layers)):
        mixer = _mixer(reader, kind, hidden)
        if mixer is None:
            return None
        total += Count(mixer, mixer)
        if not alone:
            total += _feed_forward(reader, index, hidden)
        elif kind == "none":
            total += _nemotron(reader, index, hidden)
    return total


def _tied(reader: Reader) -> bool:
    stated = reader.get("tie_word_embeddings")
    if stated is None:
        stated = reader.whole.get("tie_word_embeddings")
    return reader.model_type in _TIED if stated is None else bool(stated)


def _mixer(reader: Reader, kind: str, hidden: int) -> int | None:
    """What a layer mixes tokens with."""
    if kind in ("none", "moe"):
        return 0
    if kind in _ATTENTION:
        return _latent(reader, hidden) if reader.knows("kv_lora_rank") else _heads(reader, hidden)
    if kind == "conv":
        return 4 * hidden * hidden
    if kind == "parallel":
        mamba = _mamba2(reader, hidden)
        return None if mamba is None else _heads(reader, hidden) + mamba
    if kind == "linear":
        if reader.knows("linear_num_value_heads"):
            return _gated_delta(reader, hidden)
        return _mamba2(reader, hidden) or _mamba1(reader, hidden)
    return None


def _heads(reader: Reader, hidden: int) -> int:
    heads = _one(reader, names.QUERY_HEADS)
    dim = _optional(reader, names.HEAD_DIM) or hidden // heads
    kv_heads = _kv_heads(reader, heads)
    value = _optional(reader, names.VALUE_DIM) or dim
    gate = heads * dim if reader.get("attn_output_gate") is True else 0
    return hidden * (heads * dim + gate + kv_heads * (dim + value) + heads * value)


def _kv_heads(reader: Reader, heads: int) -> int:
    if reader.model_type == "falcon" and not reader.flag("new_decoder_architecture"):
        return 1 if reader.flag("multi_query") else heads
    if reader.model_type == "gpt_bigcode":
        return 1 if reader.flag("multi_query") else heads
    return _optional(reader, names.KV_HEADS) or heads


def _latent(reader: Reader, hidden: int) -> int:
    heads, rank = reader.integer(*names.QUERY_HEADS), reader.integer("kv_lora_rank")
    nope, rope = reader.integer("qk_nope_head_dim"), reader.integer("qk_rope_head_dim")
    value = reader.integer("v_head_dim")
    query_rank = reader.optional_integer("q_lora_rank")
    query = heads * (nope + rope)
    count = query_rank * (hidden + query) if query_rank else hidden * query
    count += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    if query_rank and reader.knows("index_head_dim", "index_n_heads"):
        dim, index_heads = reader.integer("index_head_dim"), reader.integer("index_n_heads")
        count += query_rank * index_heads * dim + hidden * (dim + index_heads)
    return count


def _gated_delta(reader: Reader, hidden: int) -> int:
    value_heads = reader.integer("linear_num_value_heads")
    keys = reader.integer("linear_num_key_heads") * reader.integer("linear_key_head_dim")
    values = value_heads * reader.integer("linear_value_head_dim")
    kernel = reader.integer("linear_conv_kernel_dim")
    return hidden * (2 * keys + 3 * values + 2 * value_heads) + (2 * keys + values) * kernel


def _mamba2(reader: Reader, hidden: int) -> int | None:
    heads = reader.optional_integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    dim = reader.optional_integer("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    if heads is None or dim is None:
        return None
    inner = heads * dim
    state = reader.integer("ssm_state_size", "mamba_d_state", "state_size")
    groups = reader.integer("n_groups", "mamba_n_groups", "mamba_ngroups")
    return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden


def _mamba1(reader: Reader, hidden: int) -> int | None:
    expand = reader.optional_integer("mamba_expand", "expand")
    inner = None if expand is None else expand * hidden
    if reader.model_type in _MAMBA:
        inner = reader.optional_integer("intermediate_size") or inner
    state = reader.optional_integer("mamba_d_state", "state_size")
    rank = reader.get("mamba_dt_rank", "time_step_rank")
    if inner is None or state is None:
        return None
    rank = -(-hidden // 16) if not isinstance(rank, int) else rank
    return hidden * 2 * inner + inner * (2 * rank + 3 * state) + inner * hidden


def _feed_forward(reader: Reader, index: int, hidden: int) -> Count:
    """Dense, or experts with a router; a mamba-only model has none."""
    if reader.model_type in _MAMBA:
        return Count(0, 0)
    matrices = 2 if reader.model_type in _TWO_MATRICES else 3
    experts = _optional(reader, _EXPERTS)
    if not experts or experts == 1 or not _has_experts(reader, index):
        inner = _dense_inner(reader, index, hidden)
        return Count(matrices * hidden * inner, matrices * hidden * inner)
    used = _optional(reader, _USED) or 1
    inner = _optional(reader, _EXPERT_INNER) or reader.integer(*_INNER)
    one = matrices * hidden * inner
    shared_inner = _optional(reader, _SHARED_INNER)
    if shared_inner is None:
        shared_inner = inner * (_optional(reader, _SHARED) or 0)
    if reader.model_type == "llama4_text":
        shared_inner = inner
    beside = matrices * hidden * shared_inner + hidden * experts
    return Count(experts * one + beside, min(used, experts) * one + beside)


def _dense_inner(reader: Reader, index: int, hidden: int) -> int:
    stated = reader.get("intermediate_size_mlp") if reader.model_type == "llama4_text" else None
    stated = stated or reader.get(*_INNER)
    if isinstance(stated, list | tuple):
        stated = stated[index]
    if stated is None and reader.model_type in _FOURFOLD:
        return 4 * hidden
    if stated is None or not reader.states("intermediate_size_mlp", *_INNER):
        raise reader.missing(*_INNER)  # the class's default is some other size's
    inner = reader.as_integer(stated, _INNER[0])
    return inner // 2 if reader.model_type == "qwen" else inner


def _has_experts(reader: Reader, index: int) -> bool:
    if index < (_optional(reader, _FIRST_DENSE, 0) or 0):
        return False
    listed = reader.get("mlp_only_layers")
    if isinstance(listed, list | tuple) and index in listed:
        return False
    freq = reader.get("moe_layer_freq")
    if isinstance(freq, list | tuple):
        return bool(freq[index])
    every = reader.get("decoder_sparse_step", "interleave_moe_layer_step")
    if isinstance(every, int) and every > 1:
        return (index + 1) % every == 0
    period = reader.get("expert_layer_period")
    if isinstance(period, int) and period > 1:
        return index % period == (reader.get("expert_layer_offset") or 0)
    return True


def _nemotron(reader: Reader, index: int, hidden: int) -> Count:
    pattern = reader.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern[index] == "E":
        experts, used = reader.integer(*_EXPERTS), reader.integer(*_USED)
        latent = reader.optional_integer("moe_latent_size")
        width = latent or hidden
        one = 2 * width * reader.integer(*_EXPERT_INNER)
        beside = hidden * experts + (2 * hidden * latent if latent else 0)
        beside += 2 * hidden * (_optional(reader, _SHARED_INNER) or 0)
        return Count(experts * one + beside, used * one + beside)
    inner = 2 * hidden * reader.integer(*_INNER)
    return Count(inner, inner)


def _encoder_decoder(reader: Reader) -> Count:
    hidden = reader.integer(*names.HIDDEN)
    decoder = reader.optional_integer("decoder_layers", "num_decoder_layers") or layer_count(reader)
    encoder = reader.optional_integer("encoder_layers") or layer_count(reader)
    heads = reader.integer("decoder_attention_heads", *names.QUERY_HEADS)
    inner = reader.integer("decoder_ffn_dim", *_INNER)
    dim = reader.optional_integer("d_kv") or hidden // heads
    gated = reader.get("is_gated_act") is True or "gated" in str(reader.get("feed_forward_proj"))
    attention = 4 * hidden * heads * dim
    feed_forward = (3 if gated else 2) * hidden * inner
    embeddings = reader.integer("vocab_size") * hidden * (1 if _tied(reader) else 2)
    encoders = encoder * (attention + feed_forward)
    decoders = decoder * (2 * attention + feed_forward)
    return Count(embeddings + encoders + decoders, embeddings + decoders)


def _one(reader: Reader, aliases: tuple[str, ...]) -> int:
    value = _optional(reader, aliases)
    if value is None:
        raise reader.missing(*aliases)
    return value


def _optional(reader: Reader, aliases: tuple[str, ...], minimum: int = 1) -> int | None:
    value = reader.get(*aliases)
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    if value is None or isinstance(value, bool) or value == 0:
        return None
    return reader.as_integer(value, aliases[0], minimum)
