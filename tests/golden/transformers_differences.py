"""Where transformers' cache differs from what a model has to remember, and by exactly how much.

Every entry rewrites what the planner says into what transformers stores, so that the walk compares
bytes here too. `NOT_WALKED` are architectures that no text cache can be taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Full, Window

Rewrite = Callable[[Iterable[MemorySpec], Any], Iterator[MemorySpec]]
"""(what the planner says, the text config) -> what transformers stores"""


@dataclass(frozen=True, slots=True)
class Difference:
    reason: str
    stores: Rewrite


def _kernel_columns(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        if "convolution" in memory.label:
            planes = tuple(replace(p, dim=p.dim + 1) for p in memory.planes)
            memory = replace(memory, planes=planes)
        yield memory


def _decompressed(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    heads = config.num_attention_heads
    planes = (
        Plane("k", heads, config.qk_nope_head_dim + config.qk_rope_head_dim),
        Plane("v", heads, config.v_head_dim),
    )
    for memory in memories:
        latent = memory.planes[0].name == "latent"
        yield replace(memory, planes=planes) if latent else memory


def _nothing(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    yield from ()


def _without_windows(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        windowed = isinstance(memory.residency, Window)
        yield replace(memory, residency=Full()) if windowed else memory


COLUMN = Difference(
    "the convolution's cache keeps as many columns as its kernel is wide; the oldest is shifted "
    "out unread by the next token",
    _kernel_columns,
)
DECOMPRESSED = Difference(
    "keys and values are cached per head, after the latent is projected up", _decompressed
)
NO_CACHE = Difference("the class keeps no cache: it computes every token anew", _nothing)

DIFFERENCES: dict[str, Difference] = {}

NOT_WALKED: dict[str, str] = {}
