"""Attention whose keys and values pass a short convolution first (Baichuan-M1)."""

from __future__ import annotations

from holdover.geometry.sizing.mechanisms import attention
from holdover.geometry.sizing.mechanisms.base import Layer, state
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"full", "sliding"})
RANK = 10


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.states("conv_window") or reader.model_type == "baichuan_m1"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    (memory,) = attention.stores(reader, layer)
    columns = reader.integer("conv_window", minimum=2) - 1
    return memory, state("k, v convolution", layer, memory.row_elements, columns)
