"""What a whole model remembers of one sequence, for every kind of model: planes, rows, layers.

A `MemorySpec` is a group of layers that remember alike. Its bytes come from the same
`BlockLayout` and codec field lists that the engine allocates by; nothing else multiplies them.
Lengths are model tokens; `logical` counts rows by the formula, `held` whole blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from holdover.spec.dtypes import DType
from holdover.spec.groups import Group
from holdover.spec.layers import Plane
from holdover.spec.layout import BlockLayout, CodecChoice, Field
from holdover.spec.residency import Fixed, Full, Residency, peak_blocks, read_tokens
from holdover.units import ceil_div

BLOCK_TOKENS = 16  # where nothing else is said


class Kind(StrEnum):
    ATTENTION = "attention"
    INDEXER = "indexer"  # keys by which sparse attention chooses what it reads
    STATE = "state"  # recurrent and convolution states: one size at any length
    CROSS = "cross"  # keys and values of an encoder's output or of an image


class Sharding(StrEnum):
    HEADS = "heads"  # heads are split; with fewer heads than ranks they are repeated
    REPLICATED = "replicated"  # every rank stores all of it, as MLA latents


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """What each of `layers` stores: `planes` per row, one row per `tokens_per_row` tokens.

    `layers` are the model's own layer indices that store rows; a layer that reads another's is
    not among them. `dtype` is set where the rows have an element type of their own, whatever
    codec is chosen for the rest. `label` is for people.
    """

    kind: Kind
    label: str
    planes: tuple[Plane, ...]
    residency: Residency | Fixed
    layers: tuple[int, ...]
    tokens_per_row: int = 1
    dtype: DType | None = None
    sharding: Sharding = Sharding.HEADS

    @property
    def grows(self) -> bool:
        """Whether every further token adds to it, at any length."""
        return isinstance(self.residency, Full)

    @property
    def row_elements(self) -> int:
        """Elements of one row of one layer."""
        return sum(plane.heads * plane.dim for plane in self.planes)

    def rows(self, n_tokens: int) -> int:
        """Rows per layer that a sequence of `n_tokens` needs for its next step."""
        if isinstance(self.residency, Fixed):
            return self.residency.n_rows
        return read_tokens(self.residency, n_tokens // self.tokens_per_row)

    def elements(self, n_tokens: int) -> int:
        """Elements over all layers."""
        return self.rows(n_tokens) * self.row_elements * len(self.layers)


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows as they are, in one element type: the layout of what no codec applies to."""

    dtype: DType

    @property
    def name(self) -> str:
        return self.dtype.value

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        shape = (plane.heads, block_tokens, plane.dim)
        return (Field("data", self.dtype, ("head", "token", "dim"), shape),)


def layout_of(
    memory: MemorySpec, codec_for: CodecChoice, block_tokens: int = BLOCK_TOKENS
) -> BlockLayout:
    """One block of `memory`: the object from which every count below, and the arena, come.

    A state without a `dtype` takes the type of an unquantised codec, and bf16 under a quantised
    one: no engine quantises states along with keys and values.
    """
    residency = Full() if isinstance(memory.residency, Fixed) else memory.residency
    group = Group(0, residency, memory.planes, memory.layers)
    if memory.kind is not Kind.STATE:
        own = memory.dtype
        return BlockLayout.of(
            group, block_tokens, codec_for if own is None else lambda layer, plane: Plain(own)
        )
    return BlockLayout.of(
        group, 1, lambda layer, plane: _state_layout(memory, codec_for, layer, plane)
    )


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """A memory and the block it is stored in: every count of its bytes, at any length."""

    memory: MemorySpec
    block: BlockLayout
    block_tokens: int  # of a memory that grows; a state is one row and no block

    @classmethod
    def of(
        cls, memory: MemorySpec, codec_for: CodecChoice, block_tokens: int = BLOCK_TOKENS
    ) -> StoredMemory:
        return cls(memory, layout_of(memory, codec_for, block_tokens), block_tokens)

    def logical_bytes(self, n_tokens: int) -> int:
        """Bytes by the formula for one sequence of `n_tokens`."""
        return self.block.logical_bytes(self.memory.rows(n_tokens))

    def held_bytes(self, n_tokens: int, step_tokens: int = 1) -> int:
        """Bytes of the whole blocks that one sequence of `n_tokens` ever holds at once.

        `step_tokens` is the longest step: a window layer holds its window and the step.
        """
        residency, per_row = self.memory.residency, self.memory.tokens_per_row
        if isinstance(residency, Fixed):
            return ceil_div(residency.n_rows, self.block.block_tokens) * self.block.nbytes
        n_rows, step_rows = n_tokens // per_row, ceil_div(step_tokens, per_row)
        return peak_blocks(residency, n_rows, step_rows, self.block_tokens) * self.block.nbytes

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes that one more token adds to all layers, for as long as this grows with it.

        0 for a memory of fixed size. A window layer adds this until its window is full.
        """
        if isinstance(self.memory.residency, Fixed):
            return Fraction(0)
        rows = self.block.block_tokens * self.memory.tokens_per_row
        return Fraction(self.block.payload_nbytes, rows)


def on_one_rank(memory: MemorySpec, n_ranks: int) -> MemorySpec:
    """What the fullest of `n_ranks` tensor-parallel ranks stores."""
    if memory.sharding is Sharding.REPLICATED or n_ranks == 1:
        return memory
    planes = tuple(replace(p, heads=ceil_div(p.heads, n_ranks)) for p in memory.planes)
    return replace(memory, planes=planes)


def _state_layout(memory: MemorySpec, codec_for: CodecChoice, layer: int, plane: Plane) -> Plain:
    if memory.dtype is not None:
        return Plain(memory.dtype)
    name = codec_for(layer, plane).name
    return Plain(DType(name) if name in (DType.FP32, DType.BF16, DType.FP16) else DType.BF16)
