"""Attention with short convolutions around it: Inkling, and Zaya's compressed attention.

Inkling has four in every layer: over keys, values, and what attention and MLP give back. Zaya
passes queries and keys together through two, and takes half of each value from the token before.
"""

from __future__ import annotations

from dataclasses import replace

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms import attention
from holdover.geometry.sizing.mechanisms.base import Layer, exact, state
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"hybrid", "hybrid_sliding"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type.startswith("inkling") or reader.model_type == "zaya"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    kind = "full" if layer.kind == "hybrid" else "sliding"
    (memory,) = attention.stores(reader, replace(layer, kind=kind))
    states = _zaya if reader.model_type == "zaya" else _inkling
    return (memory, *states(reader, layer, memory))


def _inkling(reader: Reader, layer: Layer, memory: MemorySpec) -> tuple[MemorySpec, ...]:
    kernel = reader.integer("conv_kernel_size", "sconv_kernel_size", minimum=2)
    channels = memory.row_elements + 2 * reader.integer(*names.HIDDEN)
    return (state("short convolutions", layer, channels, kernel - 1),)


def _zaya(reader: Reader, layer: Layer, memory: MemorySpec) -> tuple[MemorySpec, ...]:
    keys = memory.planes[0]
    queries = reader.integer(*names.QUERY_HEADS) * keys.dim
    columns = sum(reader.integer(name) - 1 for name in ("cca_time0", "cca_time1"))
    half = exact(reader, names.HEAD_DIM[0], keys.heads * keys.dim, 2)
    return (
        state("query, key filter", layer, queries + keys.heads * keys.dim, columns),
        state("delayed value", layer, half, 1),
    )
