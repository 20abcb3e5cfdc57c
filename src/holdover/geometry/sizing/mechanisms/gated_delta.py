"""Gated delta net (Qwen3-Next, Qwen3.5): a key x value matrix per value head, and a convolution."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return (
        any(
            reader.knows(name)
            for name in ("linear_num_value_heads", "linear_value_head_dim", "linear_key_head_dim")
        )
        or reader.model_type == "olmo_hybrid"
    )


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    key_heads = _heads(reader, "linear_num_key_heads")
    value_heads = _heads(reader, "linear_num_value_heads")
    key_dim = reader.optional_integer("linear_key_head_dim")
    if key_dim is None and reader.model_type == "olmo_hybrid":
        key_dim = int(0.75 * reader.integer(*names.HIDDEN) / key_heads)
    if key_dim is None:
        raise reader.missing("linear_key_head_dim")
    value_dim = reader.optional_integer("linear_value_head_dim")
    if value_dim is None and reader.model_type == "olmo_hybrid":
        value_dim = 2 * key_dim
    if value_dim is None:
        raise reader.missing("linear_value_head_dim")
    if value_heads % key_heads:
        raise reader.wrong("linear_num_value_heads", f"{value_heads} is no multiple of {key_heads}")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = reader.integer("linear_conv_kernel_dim", minimum=2)
    dtype = stated_dtype(reader, "mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return (
        state("gated delta", layer, value_heads, key_dim * value_dim, dtype),
        state("gated delta convolution", layer, channels, kernel - 1),
    )


def _heads(reader: Reader, name: str) -> int:
    stated = reader.optional_integer(name)
    if stated is None and reader.model_type == "olmo_hybrid":
        return reader.integer(*names.QUERY_HEADS)
    return reader.integer(name) if stated is None else stated
