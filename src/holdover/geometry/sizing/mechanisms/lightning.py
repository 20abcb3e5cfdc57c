"""Lightning attention (MiniMax-01, MiniMax-M1): a key x value matrix per head."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.heads import attention_planes_of
from holdover.geometry.sizing.mechanisms.base import Layer, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0

_TYPES = ("minimax",)


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type in _TYPES or reader.states("attn_type_list")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    heads = reader.integer(*names.QUERY_HEADS)
    dim = attention_planes_of(reader, layer, sliding=False)[0].dim
    return (state("lightning", layer, heads, dim * dim, stated_dtype(reader, "mamba_ssm_dtype")),)
