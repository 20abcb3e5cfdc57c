"""Attention and Mamba 2 side by side in every layer (Falcon-H1)."""

from __future__ import annotations

from dataclasses import replace

from holdover.geometry.sizing.mechanisms import attention, mamba2
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"parallel"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return mamba2.claims(reader, layer)


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    return (
        *attention.stores(reader, replace(layer, kind="full")),
        *mamba2.stores(reader, replace(layer, kind="linear")),
    )
