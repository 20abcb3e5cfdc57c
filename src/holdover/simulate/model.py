"""From what a person names to the layout that the manager works on: geometry only, no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdover.errors import UnsupportedModelError
from holdover.plan.sizing.device import Headroom
from holdover.plan.sizing.question import Question
from holdover.plan.sizing.solve import solve
from holdover.plan.sizing.weights import Weights
from holdover.spec.groups import CacheSpec, Group
from holdover.spec.layout import CacheLayout
from holdover.spec.memory import StoredMemory
from holdover.spec.residency import Fixed, Residency
from holdover.units import format_bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """What is simulated. `weights` is None where nothing says how many there are."""

    name: str
    architecture: str
    kv: str
    layout: CacheLayout
    weights: Weights | None
    max_context_tokens: int | None

    def room_bytes(self, memory_bytes: int, headroom: str) -> int | None:
        """What a device of that much memory has left for the arena; None: the weights' size is
        not known."""
        if self.weights is None:
            return None
        headroom_bytes = Headroom.parse(headroom).of(memory_bytes)
        return memory_bytes - self.weights.n_bytes - headroom_bytes


def read_subject(model: str, question: Question, kv: str, block_tokens: int) -> Subject:
    """Raises HoldoverError for a model that is not there, or that keeps what no block holds."""
    plan = solve(model, question, kv=kv, block_tokens=block_tokens)
    return Subject(
        plan.source.name,
        plan.model.architecture,
        kv,
        layout_of_parts(plan.source.name, plan.cache.parts, block_tokens),
        plan.weights,
        plan.model.max_context_tokens,
    )


def layout_of_parts(name: str, parts: Sequence[StoredMemory], block_tokens: int) -> CacheLayout:
    """A group for each of a model's memories."""
    groups: list[Group] = []
    for part in parts:
        residency = _residency(name, part)
        groups.append(Group(len(groups), residency, part.memory.planes, part.memory.layers))
    if not groups:
        raise UnsupportedModelError(f"{name} remembers nothing that grows: there is no cache")
    blocks = (replace(part.block, group=g) for part, g in zip(parts, groups, strict=True))
    return CacheLayout.of_blocks(CacheSpec((), block_tokens, tuple(groups), ()), tuple(blocks))


def _residency(name: str, part: StoredMemory) -> Residency:
    """Raises UnsupportedModelError for a memory that blocks of tokens do not hold."""
    memory = part.memory
    if isinstance(memory.residency, Fixed):
        size = format_bytes(part.logical_bytes(1))
        raise UnsupportedModelError(
            f"{name} keeps {size} of {memory.label} that belong to a whole sequence and to no "
            "block of tokens; what is reused of such a model cannot be simulated yet"
        )
    if memory.tokens_per_row > 1:
        raise UnsupportedModelError(
            f"{name} keeps one row for {memory.tokens_per_row} tokens ({memory.label}); "
            "such a cache cannot be simulated yet"
        )
    return memory.residency
