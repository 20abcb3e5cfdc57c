"""What counting gives: a model's matrices by layer and role, in all and as one token reads them.

`used` is what one token's step reads: of the experts only the chosen ones, and of the input
embedding nothing to speak of, one row; the output head is read whole, tied to the embedding or
not. This is how gpt-oss counts its 5.1B; Qwen and Mistral count the embedding in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdover.geometry.sizing.base import Parameters


class Role(StrEnum):
    EMBEDDING = "embedding"
    HEAD = "head"
    MIXER = "attention"  # attention, or what stands for it: Mamba, gated delta, convolution
    DENSE = "mlp"
    EXPERTS = "experts"
    SHARED = "shared experts"
    SMALL = "small"  # routers and the like, which nobody quantises
    TOWER = "towers"  # what reads images and sound, with the projection to the text's width


Place = tuple[int | None, Role | None]
"""(layer, role); None for all of them"""


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices of one role in one layer; `layer` is None of what stands beside the layers."""

    role: Role
    layer: int | None
    count: int
    used: int


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All matrices of a model. `missing` names parts whose size the config does not say."""

    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()

    @property
    def parameters(self) -> Parameters:
        total = sum(part.count for part in self.parts)
        return Parameters(total, sum(part.used for part in self.parts), "formula")


def part(role: Role, layer: int | None, count: int, used: int | None = None) -> Part:
    """A part of which every token reads all, where nothing else is said."""
    return Part(role, layer, count, count if used is None else used)
