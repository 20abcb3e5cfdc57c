"""RWKV 5, 6 and 7: a matrix per head, and the previous token's input of both halves of a layer."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, exact, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type.startswith("rwkv")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    hidden = reader.integer(*names.HIDDEN)
    dtype = stated_dtype(reader, "mamba_ssm_dtype")
    if reader.model_type == "rwkv":  # version 4: numerator, denominator and maximum per channel
        width = reader.optional_integer("attention_hidden_size") or hidden
        return (
            state("rwkv", layer, width, 3, dtype),
            state("rwkv shift", layer, hidden, 2),
        )
    dim = reader.integer("head_size", "head_dim")
    width = reader.optional_integer("attention_hidden_size", "dim_att") or hidden
    heads = exact(reader, "head_size", width, dim)
    return (
        state("rwkv", layer, heads, dim * dim, dtype),
        state("rwkv shift", layer, hidden, 2),
    )
