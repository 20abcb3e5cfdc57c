"""Matrices of what a layer mixes tokens with: attention of every kind, and what stands for it."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.heads import attention_planes_of, query_heads_of
from holdover.geometry.sizing.mechanisms import mamba2 as mechanism
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.mechanisms.compressed import ratio_of
from holdover.geometry.sizing.reader import Reader
from holdover.units import ceil_div

_ATTENTION = frozenset(("full", "sliding", "chunked", "indexed", "cross", "hybrid"))
# Types whose queries come with a gate, which their classes do not declare.
_GATED = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
_MAMBA1 = frozenset(("mamba", "falcon_mamba", "jamba", "zamba"))


def mixer(reader: Reader, layer: Layer, hidden: int, stores: bool) -> int | None:
    """Elements of a layer's mixer; None of a structure that is not known.

    `stores` is false of a layer that reads another's keys and values: it has no matrices for them.
    """
    kind, model_type = layer.kind, reader.model_type
    if kind in ("none", "moe"):
        return 0
    if model_type == "deepseek_v4":
        return _compressed(reader, layer, hidden)
    if model_type in ("zamba", "zamba2"):
        return mamba2(reader, layer, hidden) if model_type == "zamba2" else None
    if kind in _ATTENTION:
        if reader.knows("kv_lora_rank"):
            return _latent(reader, hidden)
        return _heads(reader, layer, hidden, stores)
    if kind == "conv":
        return 4 * hidden * hidden
    if kind == "parallel":
        mamba = mamba2(reader, layer, hidden)
        return None if mamba is None else _heads(reader, layer, hidden, True) + mamba
    return _linear(reader, layer, hidden) if kind == "linear" else None


def _linear(reader: Reader, layer: Layer, hidden: int) -> int | None:
    model_type = reader.model_type
    if model_type.startswith("rwkv"):
        return _rwkv(reader, hidden)
    if model_type == "recurrent_gemma":
        return _rg_lru(reader, hidden)
    if model_type == "minimax":  # q, k, v, their gate and the way back
        heads = query_heads_of(reader, layer, sliding=False)
        return 5 * hidden * heads * attention_planes_of(reader, layer, sliding=False)[0].dim
    if model_type == "kimi_linear":
        return _kda(reader, hidden)
    if reader.knows("linear_num_value_heads"):
        return _gated_delta(reader, hidden)
    return _mamba1(reader, hidden) if model_type in _MAMBA1 else mamba2(reader, layer, hidden)


def _heads(reader: Reader, layer: Layer, hidden: int, stores: bool) -> int:
    sliding = layer.kind == "sliding"
    keys, values = attention_planes_of(reader, layer, sliding)
    heads = query_heads_of(reader, layer, sliding)
    stated = reader.get("attn_output_gate")
    gate = reader.model_type in _GATED if stated is None else stated is True
    queries = heads * keys.dim * (2 if gate else 1)
    stored = keys.heads * keys.dim + values.heads * values.dim if stores else 0
    if stores and not sliding and reader.get("attention_k_eq_v") is True:
        stored = keys.heads * keys.dim
    return hidden * (queries + stored + heads * values.dim)


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


def _compressed(reader: Reader, layer: Layer, hidden: int) -> int:
    """DeepSeek-V4: low-rank queries and output, one latent; layers that compress have two matrices
    for it, twice as wide with the small ratio, whose layers have an indexer too."""
    heads, dim = reader.integer(*names.QUERY_HEADS), reader.integer("head_dim")
    query_rank, out_rank = reader.integer("q_lora_rank"), reader.integer("o_lora_rank")
    groups = reader.integer("o_groups")
    width = heads * dim
    count = query_rank * (hidden + width) + hidden * dim
    count += width * out_rank + groups * out_rank * hidden
    ratio = ratio_of(reader, layer)
    series = 2 if ratio == 4 else 1
    if ratio:
        count += 2 * hidden * series * dim
    if series == 2:
        index_dim, index_heads = reader.integer("index_head_dim"), reader.integer("index_n_heads")
        count += 2 * hidden * 2 * index_dim + index_heads * (query_rank * index_dim + hidden)
    streams = reader.integer("hc_mult")
    return count + 2 * streams * hidden * (2 + streams) * streams


def _gated_delta(reader: Reader, hidden: int) -> int:
    value_heads = reader.integer("linear_num_value_heads")
    keys = reader.integer("linear_num_key_heads") * reader.integer("linear_key_head_dim")
    values = value_heads * reader.integer("linear_value_head_dim")
    kernel = reader.integer("linear_conv_kernel_dim")
    return hidden * (2 * keys + 3 * values + 2 * value_heads) + (2 * keys + values) * kernel


def _kda(reader: Reader, hidden: int) -> int:
    part = reader.part("linear_attn_config")
    source, prefix = (reader, "linear_") if part is None else (part, "")
    heads = source.integer(f"{prefix}num_heads")
    dim = source.integer(f"{prefix}head_dim")
    low_rank = 2 * dim * (hidden + heads * dim)  # of the forget gate and the output's
    return 4 * hidden * heads * dim + low_rank + hidden * heads


def mamba2(reader: Reader, layer: Layer, hidden: int) -> int | None:
    if not mechanism.claims(reader, layer):
        return None
    heads, dim = mechanism.heads_of(reader)
    inner = heads * dim
    state, groups = reader.integer(*mechanism.STATE), reader.integer(*mechanism.GROUPS)
    return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden


def _mamba1(reader: Reader, hidden: int) -> int | None:
    expand = reader.optional_integer("mamba_expand", "expand")
    inner = None if expand is None else expand * hidden
    if reader.model_type in ("mamba", "falcon_mamba"):
        inner = reader.optional_integer("intermediate_size") or inner
    state = reader.optional_integer("mamba_d_state", "state_size")
    rank = reader.get("mamba_dt_rank", "time_step_rank")
    if inner is None or state is None:
        return None
    rank = ceil_div(hidden, 16) if not isinstance(rank, int) else rank
    return hidden * 2 * inner + inner * (2 * rank + 3 * state) + inner * hidden


def _rwkv(reader: Reader, hidden: int) -> int | None:
    """Receptance, key, value and output, from version 5 a gate; 6 adds narrow mixing matrices."""
    version = reader.model_type.removeprefix("rwkv")
    narrow = 2 * hidden * (5 * 32 + 64) if version == "6" else 0
    squares = {"": 4, "5": 5, "6": 5}.get(version)
    width = reader.optional_integer("attention_hidden_size", "dim_att") or hidden
    return None if squares is None else squares * hidden * width + narrow


def _rg_lru(reader: Reader, hidden: int) -> int:
    width = reader.optional_integer("lru_width") or hidden
    gates = 2 * width * width // reader.integer(*names.QUERY_HEADS)
    return 3 * hidden * width + gates + width * reader.integer("conv1d_width")
