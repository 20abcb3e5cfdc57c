"""Matrices of a layer's feed-forward part: dense, or experts with a router."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.weights.base import Part, Role, part
from holdover.units import round_up

INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "inner_dim")
_EXPERT_INNER = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert")
_SHARED_INNER = (
    "shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)  # fmt: skip
_FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers", "n_dense_layers")
# Types whose feed-forward is two matrices and not three.
_TWO_MATRICES = frozenset(
    ("gpt2", "gpt_bigcode", "gpt_neox", "gpt_neo", "gptj", "codegen", "bloom", "falcon", "mpt",
     "opt", "phi", "starcoder2", "nemotron", "nemotron_h", "persimmon", "t5", "bart", "whisper",
     "arcee", "biogpt", "xglm", "apertus", "apertus1p5_text", "jais2", "nanochat")
)  # fmt: skip
# Where nothing is said: types whose inner width is 4 x hidden.
_FOURFOLD = frozenset(
    ("gpt2", "gpt_bigcode", "bloom", "falcon", "mpt", "gptj", "codegen", "gpt_neo", "phi")
)
# Types whose dense part has a name of its own.
_OWN_INNER = {
    "llama4_text": ("intermediate_size_mlp",), "granitemoehybrid": ("shared_intermediate_size",),
}  # fmt: skip
_NONE = frozenset(("mamba", "falcon_mamba", "mamba2"))


def feed_forward(reader: Reader, layer: Layer, hidden: int) -> Iterator[Part]:
    index, model_type = layer.index, reader.model_type
    if model_type in _NONE:
        return
    if model_type == "nemotron_h":  # a layer is a mixer or a feed-forward
        if layer.kind == "none":
            yield from _nemotron(reader, index, hidden)
        return
    if model_type.startswith("rwkv"):
        yield part(Role.DENSE, index, hidden * hidden + 2 * hidden * _rwkv_inner(reader, hidden))
        return
    matrices = 2 if model_type in _TWO_MATRICES else 3
    experts = first(reader, _EXPERTS) or 1
    has_experts = experts > 1 and _has_experts(reader, index)
    if has_experts:
        yield from _experts(reader, index, hidden, experts, matrices)
    if not has_experts or model_type.startswith("gemma4"):  # Gemma 4 has both in a layer
        yield part(Role.DENSE, index, matrices * hidden * dense_inner(reader, layer, hidden))


def _experts(
    reader: Reader, index: int, hidden: int, experts: int, matrices: int
) -> Iterator[Part]:
    used = min(first(reader, _USED) or 1, experts)
    inner = first(reader, _EXPERT_INNER) or reader.integer(*INNER)
    one = matrices * hidden * inner
    shared_inner = first(reader, _SHARED_INNER)
    if shared_inner is None:
        shared_inner = inner * (first(reader, _SHARED) or 0)
    if reader.model_type == "llama4_text":
        shared_inner = inner
    yield part(Role.EXPERTS, index, experts * one, used * one)
    yield part(Role.SMALL, index, hidden * experts)
    if shared_inner:
        yield part(Role.SHARED, index, matrices * hidden * shared_inner)


def dense_inner(reader: Reader, layer: Layer, hidden: int) -> int:
    """Never the class's default: that is some other size's."""
    own = _OWN_INNER.get(reader.model_type, ())
    stated = next((v for name in (own, INNER) if name and (v := reader.get(*name))), None)
    if isinstance(stated, list | tuple):
        stated = stated[layer.index]
    if stated is None and reader.model_type in _FOURFOLD:
        return 4 * hidden
    if stated is None or not reader.states(*own, *INNER):
        raise reader.missing(*INNER)
    inner = reader.as_integer(stated, INNER[0])
    if reader.model_type in ("qwen", "recurrent_gemma"):  # both halves of the gated input
        return inner // 2
    if reader.model_type == "lfm2" and reader.get("block_auto_adjust_ff_dim") is True:
        multiple = reader.integer("block_multiple_of")
        return round_up(2 * inner // 3, multiple)
    shared = reader.optional_integer("num_kv_shared_layers", minimum=0) or 0
    if layer.index >= layer.n_layers - shared and reader.get("use_double_wide_mlp") is True:
        return 2 * inner
    return inner


def _rwkv_inner(reader: Reader, hidden: int) -> int:
    stated = reader.optional_integer("intermediate_size")
    if stated is None and reader.model_type == "rwkv":
        return 4 * hidden
    return hidden * 7 // 2 // 32 * 32 if stated is None else stated


def _has_experts(reader: Reader, index: int) -> bool:
    if index < (first(reader, _FIRST_DENSE) or 0):
        return False
    kinds = reader.get("mlp_layer_types")
    if isinstance(kinds, list | tuple):
        return bool(kinds[index] != "dense")
    listed = reader.get("mlp_only_layers")
    if isinstance(listed, list | tuple) and index in listed:
        return False
    if reader.model_type.startswith("gemma4"):
        return reader.get("enable_moe_block") is True
    freq = reader.get("moe_layer_freq")
    if isinstance(freq, list | tuple):
        return bool(freq[index])
    every = reader.get("decoder_sparse_step", "interleave_moe_layer_step")
    if isinstance(every, int) and every > 1:
        return (index + 1) % every == 0
    period = reader.get("expert_layer_period")
    if isinstance(period, int) and period > 1:
        return bool(index % period == (reader.get("expert_layer_offset") or 0))
    return True


def _nemotron(reader: Reader, index: int, hidden: int) -> Iterator[Part]:
    """The layer's letter, or its name in a list."""
    listed = reader.get("layers_block_type", "layer_types", "hybrid_override_pattern")
    if not listed or listed[index] not in ("E", "moe"):
        inner = reader.get(*INNER)
        inner = inner[index] if isinstance(inner, list | tuple) else inner
        yield part(Role.DENSE, index, 2 * hidden * reader.as_integer(inner, INNER[0]))
        return
    experts, used = reader.integer(*_EXPERTS), reader.integer(*_USED)
    latent = reader.optional_integer("moe_latent_size")
    one = 2 * (latent or hidden) * reader.integer(*_EXPERT_INNER)
    yield part(Role.EXPERTS, index, experts * one, used * one)
    yield part(Role.SMALL, index, hidden * experts)
    shared = 2 * hidden * (first(reader, _SHARED_INNER) or 0)
    yield part(Role.SHARED, index, shared + (2 * hidden * latent if latent else 0))


def first(reader: Reader, aliases: tuple[str, ...], minimum: int = 1) -> int | None:
    """A count that may be a list, of which the first; None where it is not given or zero."""
    value = reader.get(*aliases)
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    if value is None or isinstance(value, bool) or value == 0:
        return None
    return reader.as_integer(value, aliases[0], minimum)
