"""CPM-Ant: learned prompt tokens stand before every text, and their rows beside its own."""

from __future__ import annotations

from dataclasses import replace

from holdover.geometry.sizing.mechanisms import attention
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec
from holdover.spec.residency import Fixed

KINDS = frozenset({"full"})
RANK = 10


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type == "cpmant"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    (memory,) = attention.stores(reader, layer)
    n_rows = reader.integer("prompt_length")
    prompt = replace(memory, label=f"prompt, {n_rows} tokens", residency=Fixed(n_rows))
    return memory, prompt
