"""Short convolution (LFM2): the last inputs of a gated convolution are all that is kept."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, state
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"conv"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("conv_L_cache")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    kernel = reader.integer("conv_L_cache", minimum=2)
    return (state("convolution", layer, reader.integer(*names.HIDDEN), kernel - 1),)
