"""Kimi delta attention: a key x value matrix per head, and convolutions of q, k and v."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    if reader.model_type == "bailing_hybrid":
        return True
    return reader.knows("linear_attn_config") or reader.knows("linear_num_heads", "linear_head_dim")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    if reader.model_type == "bailing_hybrid":
        heads, dim, kernel = _bailing(reader)
        return _states(reader, layer, heads, dim, kernel)
    part = reader.part("linear_attn_config") or reader
    reader.ignore("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads = part.integer("num_heads") if part is not reader else part.integer("linear_num_heads")
    dim = part.integer("head_dim") if part is not reader else part.integer("linear_head_dim")
    kernel = part.integer(
        "short_conv_kernel_size" if part is not reader else "linear_conv_kernel_dim", minimum=2
    )
    return _states(reader, layer, heads, dim, kernel)


def _bailing(reader: Reader) -> tuple[int, int, int]:
    """Heads of the attention's number and `head_dim`, which the class then gives another sense."""
    reader.ignore("linear_conv_kernel_dim", "linear_num_heads")
    heads = reader.integer(*names.QUERY_HEADS)
    dim = reader.optional_integer("linear_head_dim") or reader.integer(*names.HEAD_DIM)
    reader.ignore(*names.HEAD_DIM)
    return heads, dim, reader.integer("short_conv_kernel_size", minimum=2)


def _states(
    reader: Reader, layer: Layer, heads: int, dim: int, kernel: int
) -> tuple[MemorySpec, ...]:
    return (
        state("kda", layer, heads, dim * dim, stated_dtype(reader, "mamba_ssm_dtype")),
        state("kda convolutions", layer, 3 * heads * dim, kernel - 1),
    )
