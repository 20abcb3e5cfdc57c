"""Typed views over the arena: where the rows of one layer's plane lie.

A view is [units, *field.shape] and steps through the arena by the group's unit, the largest number
of bytes that divides every block's offset. A block is named by its offset in units, so one index
finds it in any sector; the views of other units overlap it and are never used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdover.codecs.base import Codec, get_codec
from holdover.spec.layout import CacheLayout, PlacedField

PIECE_BYTES = 2**19  # of fp32 rows decoded at a time: little enough to stay in cache


@dataclass(frozen=True, slots=True)
class PlaneView:
    """The rows of one layer and plane, through its codec."""

    codec: Codec
    fields: Mapping[str, FieldView]

    @classmethod
    def of(
        cls, arena: Tensor, layout: CacheLayout, group: int, layer: int, plane: str
    ) -> PlaneView:
        placed = layout.blocks[group].fields_of(layer, plane)
        unit_bytes = block_unit_bytes(layout, group)
        fields = {p.field.name: FieldView.of(arena, p, unit_bytes) for p in placed}
        return cls(get_codec(placed[0].codec), fields)

    def write(self, blocks: Tensor, tokens: Tensor, rows: Tensor) -> None:
        """Store `rows` [n, heads, dim], each in its block (in units) at its token of the block."""
        for name, encoded in self.codec.encode(rows).items():
            self.fields[name].write(blocks, tokens, encoded)

    def read(self, blocks: Tensor, into: Tensor) -> None:
        """Decode whole blocks (in units) into fp32 `into` [blocks, block_tokens, heads, dim]."""
        block_tokens = into.shape[1]
        piece = max(1, PIECE_BYTES // (into[0].numel() * into.element_size()))
        for start in range(0, len(blocks), piece):
            at = blocks[start : start + piece]
            encoded = {name: f.read(at, block_tokens) for name, f in self.fields.items()}
            into[start : start + piece] = self.codec.decode(encoded)


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field of every block. `token_axis` counts within the field; None: one value a block."""

    data: Tensor
    token_axis: int | None

    @classmethod
    def of(cls, arena: Tensor, placed: PlacedField, unit_bytes: int) -> FieldView:
        field = placed.field
        item_bytes = field.dtype.item_bytes
        strides = torch.empty(field.shape, device="meta").stride()
        n_units = (arena.numel() - placed.offset - field.nbytes) // unit_bytes + 1
        typed = arena.view(getattr(torch, field.dtype.torch_name))
        data = typed.as_strided(
            (n_units, *field.shape),
            (unit_bytes // item_bytes, *strides),
            typed.storage_offset() + placed.offset // item_bytes,
        )
        return cls(data, field.axes.index("token") if "token" in field.axes else None)

    def write(self, blocks: Tensor, tokens: Tensor, encoded: Tensor) -> None:
        """`encoded` is [n, *field shape without token]."""
        if self.token_axis is None:  # the codec gives each row of a block the same value
            self.data[blocks] = encoded
        else:
            self.data.movedim(1 + self.token_axis, 1)[blocks, tokens] = encoded

    def read(self, blocks: Tensor, block_tokens: int) -> Tensor:
        """[blocks, block_tokens, *field shape without token]"""
        found = self.data.index_select(0, blocks)
        if self.token_axis is None:
            return found.unsqueeze(1).expand(-1, block_tokens, *found.shape[1:])
        return found.movedim(1 + self.token_axis, 1)


def block_unit_bytes(layout: CacheLayout, group: int) -> int:
    """Divides the offset of every block of the group."""
    return gcd(layout.sector_bytes, layout.blocks[group].nbytes)


def block_locator(layout: CacheLayout, group: int) -> Callable[[NDArray[np.int32]], Tensor]:
    """Block numbers to int64 offsets in units, past any arena's end in int32.

    A dead block (-1) reads as block 0 and must be masked.
    """
    unit_bytes = block_unit_bytes(layout, group)

    def locate(blocks: NDArray[np.int32]) -> Tensor:
        numbers = np.maximum(blocks, 0).astype(np.int64)
        return torch.from_numpy(layout.block_offset(group, numbers) // unit_bytes)

    return locate
