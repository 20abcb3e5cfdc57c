"""Kimi delta attention: a key x value matrix per head, and convolutions of q, k and v."""

from __future__ import annotations

from holdover.geometry.sizing.mechanisms.base import Layer, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("linear_attn_config") or reader.knows("linear_num_heads", "linear_head_dim")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    part = reader.part("linear_attn_config") or reader
    reader.ignore("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads = part.integer("num_heads") if part is not reader else part.integer("linear_num_heads")
    dim = part.integer("head_dim") if part is not reader else part.integer("linear_head_dim")
    kernel = part.integer(
        "short_conv_kernel_size" if part is not reader else "linear_conv_kernel_dim", minimum=2
    )
    return (
        state("kda", layer, heads, dim * dim, stated_dtype(reader, "mamba_ssm_dtype")),
        state("kda convolutions", layer, 3 * heads * dim, kernel - 1),
    )
