"""Where every element of a block lies: the only byte arithmetic in the project.

    sector   | block | block | block | remainder      lent to one group at a time
    block    | layer 0: k fields, v fields | layer 1: ... |    all layers of the group
    field    elements in the codec's order, starting at a multiple of ALIGNMENT bytes

Planner, arena, manager, kernels, disk records and fingerprints read these objects; none of them
multiplies heads by dims again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec, Group
from holdover.spec.layers import Plane
from holdover.spec.residency import (
    Ints,
    live_tokens,
    peak_blocks,
    step_blocks,
)
from holdover.spec.sparse import BOUNDS, BOUNDS_DTYPE, Reading
from holdover.units import ceil_div, largest, round_up

ALIGNMENT = 64  # bytes: a cache line and an AVX-512 register


@dataclass(frozen=True, slots=True)
class Field:
    """One array that a codec keeps per block, layer and plane; `axes` names its element order.

    `shape` follows `axes`, C-contiguous; axis names are "head", "token", "dim" or a part of one,
    for example ("head", "dim_pair", "token", "pair").
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.item_bytes


class FieldCodec(Protocol):
    """The part of a codec that a layout needs."""

    @property
    def name(self) -> str: ...

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]: ...


CodecChoice = Callable[[int, Plane], FieldCodec]
"""Codec for a (layer, plane); keys and values, and single layers, may differ."""


@dataclass(frozen=True, slots=True)
class PlacedField:
    """A field of one layer and plane at its byte offset in the block."""

    layer: int
    plane: str
    codec: str
    field: Field
    offset: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One block of a group: every field of every layer, and the bytes of alignment between them."""

    group: Group
    block_tokens: int
    fields: tuple[PlacedField, ...]
    nbytes: int
    payload_nbytes: int  # without the alignment between fields

    @classmethod
    def of(cls, group: Group, block_tokens: int, codec_for: CodecChoice) -> BlockLayout:
        placed: list[PlacedField] = []
        offset = 0

        def place(layer: int, plane: str, codec: str, fields: Iterable[Field]) -> None:
            nonlocal offset
            for field in fields:
                placed.append(PlacedField(layer, plane, codec, field, offset))
                offset = round_up(offset + field.nbytes, ALIGNMENT)

        for layer in group.layers:
            for plane in group.planes:
                codec = codec_for(layer, plane)
                place(layer, plane.name, codec.name, codec.fields(plane, block_tokens))
                if plane.name == "k" and group.has_bounds(layer):
                    place(layer, BOUNDS, BOUNDS_DTYPE.value, (bounds_field(plane),))
        payload = sum(p.field.nbytes for p in placed)
        return cls(group, block_tokens, tuple(placed), offset, payload)

    @property
    def padding_nbytes(self) -> int:
        return self.nbytes - self.payload_nbytes

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Byte ranges that no field has."""
        stops = [*(p.offset for p in self.fields[1:]), self.nbytes]
        for placed, stop in zip(self.fields, stops, strict=True):
            start = placed.offset + placed.field.nbytes
            if start < stop:
                yield start, stop

    def fields_of(self, layer: int, plane: str) -> tuple[PlacedField, ...]:
        found = tuple(p for p in self.fields if p.layer == layer and p.plane == plane)
        assert found, f"group {self.group.index} stores no plane {plane!r} of layer {layer}"
        return found

    def logical_bytes(self, n_tokens: int) -> int:
        """Bytes of `n_tokens` live tokens by the formula, without block rounding or padding."""
        return ceil_div(n_tokens * self.payload_nbytes, self.block_tokens)

    @property
    def bounds_nbytes(self) -> int:
        """Bytes of a block by which sparse layers choose what they read."""
        return sum(p.field.nbytes for p in self.fields if p.plane == BOUNDS)

    @property
    def reading(self) -> Reading:
        """How much of it a decoding query reads."""
        group, bounds = self.group, self.bounds_nbytes
        few = sum(p.field.nbytes for p in self.fields if group.has_bounds(p.layer)) - bounds
        rest = self.payload_nbytes - bounds - few
        return Reading(group.residency, self.block_tokens, rest, few, bounds, group.sparse)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """All groups' blocks and the sector they are cut from."""

    spec: CacheSpec
    blocks: tuple[BlockLayout, ...]
    sector_bytes: int
    blocks_per_sector: tuple[int, ...]

    @classmethod
    def of(cls, spec: CacheSpec, codec_for: CodecChoice) -> CacheLayout:
        blocks = (BlockLayout.of(g, spec.block_tokens, codec_for) for g in spec.groups)
        return cls.of_blocks(spec, tuple(blocks))

    @classmethod
    def of_blocks(cls, spec: CacheSpec, blocks: tuple[BlockLayout, ...]) -> CacheLayout:
        """Of blocks that are laid out already, one for each group."""
        sector_bytes = _choose_sector_bytes([b.nbytes for b in blocks])
        return cls(spec, blocks, sector_bytes, tuple(sector_bytes // b.nbytes for b in blocks))

    @property
    def remainder_bytes(self) -> tuple[int, ...]:
        """Bytes of a sector that each group cannot use."""
        return tuple(self.sector_bytes % block.nbytes for block in self.blocks)

    @property
    def fingerprint(self) -> bytes:
        """Equal for two layouts exactly when a block of one can be read as a block of the other."""
        import hashlib  # the planner, which hashes nothing, starts without it

        parts = [f"holdover-layout-1 block_tokens={self.spec.block_tokens}"]
        for block in self.blocks:
            parts.append(f"group {block.group.residency!r} nbytes={block.nbytes}")
            parts.extend(repr(placed) for placed in block.fields)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest()

    def block_offset(self, group: int, block: Ints) -> Ints:
        """Byte offset in the arena of block number `block` of a group, or of each of an array."""
        sector = block // self.blocks_per_sector[group]
        slot = block % self.blocks_per_sector[group]
        return sector * self.sector_bytes + slot * self.blocks[group].nbytes

    def sectors_for(self, n_blocks: Sequence[int]) -> int:
        """Sectors that hold `n_blocks[group]` blocks of each group, packed."""
        return sum(
            ceil_div(n, per) for n, per in zip(n_blocks, self.blocks_per_sector, strict=True)
        )

    def peak_blocks(self, context_tokens: int, step_tokens: int) -> tuple[int, ...]:
        """Most blocks per group that one sequence ever holds."""
        return tuple(
            peak_blocks(b.group.residency, context_tokens, step_tokens, b.block_tokens)
            for b in self.blocks
        )

    def live_blocks(self, n_tokens: int) -> tuple[int, ...]:
        """Blocks per group that one sequence of `n_tokens` holds between two steps."""
        return tuple(
            step_blocks(b.group.residency, n_tokens, n_tokens, b.block_tokens).n_blocks
            for b in self.blocks
        )

    def max_conversations(self, n_sectors: int, context_tokens: int) -> int:
        """Conversations of `context_tokens`, all of them decoding, that `n_sectors` hold."""
        blocks = self.peak_blocks(context_tokens, step_tokens=1)
        return largest(
            lambda n: self.sectors_for([n * count for count in blocks]) <= n_sectors,
            sum(n_sectors * per for per in self.blocks_per_sector),
        )

    def whole_conversations(self, n_sectors: int, context_tokens: int) -> int:
        """Conversations that `n_sectors` hold where each has blocks for all of `context_tokens`
        from its start, live or not: contiguous reservation."""
        blocks = ceil_div(context_tokens, self.spec.block_tokens)
        return largest(
            lambda n: self.sectors_for([n * blocks] * len(self.blocks)) <= n_sectors,
            sum(n_sectors * per for per in self.blocks_per_sector),
        )

    def logical_bytes(self, n_tokens: int) -> int:
        """Bytes by the formula of one conversation of `n_tokens`: only what is still live."""
        return sum(b.logical_bytes(live_tokens(b.group.residency, n_tokens)) for b in self.blocks)

    def read_bytes(self, n_tokens: int) -> int:
        """Bytes by the formula that the step of token `n_tokens` reads: what a conversation of
        that length needs, the newest token's own row included, less what sparse layers leave."""
        return sum(block.reading.nbytes(n_tokens) for block in self.blocks)

    def held_bytes(self, n_blocks: Sequence[int]) -> int:
        """Bytes of whole blocks."""
        return sum(n * b.nbytes for n, b in zip(n_blocks, self.blocks, strict=True))


def bounds_field(keys: Plane) -> Field:
    """The least and then the most of a block's keys, of each head."""
    return Field("edges", BOUNDS_DTYPE, ("head", "edge", "dim"), (keys.heads, 2, keys.dim))


def _choose_sector_bytes(block_nbytes: Sequence[int]) -> int:
    """Smallest sector that wastes at most 1/64 for every group, else the least wasteful tried.

    A sector is a whole number of some group's blocks and holds at least one of each.
    """
    largest = max(block_nbytes)
    sizes = sorted({n * count for n in block_nbytes for count in range(1, 16 * largest // n + 1)})
    sizes = [size for size in sizes if size >= largest]

    def waste(size: int) -> float:
        return max(size % n for n in block_nbytes) / size

    return next((s for s in sizes if waste(s) <= 1 / 64), min(sizes, key=waste))
