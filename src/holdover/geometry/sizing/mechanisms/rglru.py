"""RG-LRU (RecurrentGemma): one number per channel, and the convolution's last inputs."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, state
from holdover.geometry.sizing.reader import Reader
from holdover.spec.dtypes import DType
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("lru_width") or reader.model_type == "recurrent_gemma"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    width = reader.optional_integer("lru_width") or reader.integer(*names.HIDDEN)
    kernel = reader.integer("conv1d_width", minimum=2)
    return (
        state("rg-lru", layer, width, 1, DType.FP32),
        state("rg-lru convolution", layer, width, kernel - 1),
    )
