"""llama.cpp's cache types: blocks of 32 elements with an fp16 scale, and a minimum in the _1 types.

    bytes per 32 | q8_0: 2 + 32 | q5_1: 4 + 4 + 16 | q5_0: 2 + 4 + 16 | q4_1: 4 + 16 | q4_0: 2 + 16

The levels are those that llama.cpp computes; each part of a block is a field of its own here, so
the bytes are the same and lie in another order. Rows beyond fp16's range, or with inf or NaN in
them, come back as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdover.codecs.base import demand
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field
from holdover.units import exact_div

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_DIMS = 32


@dataclass(frozen=True, slots=True)
class Ggml:
    """`low`: element i of a block in the low bits of byte i, element 16 + i in the high bits.

    `high` is the fifth bit of each element, 8 of them in a byte. q8_0 keeps whole bytes, `data`.
    """

    name: str
    bits: int
    has_minimum: bool
    max_error: float  # without a minimum, a row's other end lies a whole level off
    serves: bool = True
    centres_keys: bool = False
    error_from: float = 2.0**-7  # below it fp16 scales lose digits

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        fits = plane.dim % BLOCK_DIMS == 0
        demand(self.name, plane, fits, f"dims that are a multiple of {BLOCK_DIMS}")

        def part(name: str, dtype: DType, axis: str, dims_per_item: int) -> Field:
            shape = (plane.heads, block_tokens, exact_div(plane.dim, dims_per_item))
            return Field(name, dtype, ("head", "token", axis), shape)

        parts = [part("scale", DType.FP16, "group", BLOCK_DIMS)]
        if self.has_minimum:
            parts.append(part("minimum", DType.FP16, "group", BLOCK_DIMS))
        if self.bits == 8:
            parts.append(part("data", DType.INT8, "dim", 1))
        else:
            parts.append(part("low", DType.UINT8, "pair", 2))
        if self.bits == 5:
            parts.append(part("high", DType.UINT8, "octet", 8))
        return tuple(parts)

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        blocks = _split(rows.float(), BLOCK_DIMS)
        if self.bits == 8:
            scale = blocks.abs().amax(-1) / 127
            levels = _divide(blocks, scale)
            levels = torch.trunc(levels + torch.copysign(levels.new_tensor(0.5), levels))
            return _scales(scale) | {"data": _whole(levels, -127, 127).to(torch.int8).flatten(-2)}
        top = 2**self.bits - 1
        if self.has_minimum:
            low, high = blocks.aminmax(dim=-1)
            scale, offset, parts = (high - low) / top, 0.5, {"minimum": low.half() + 0.0}
            levels = _divide(blocks - low[..., None], scale) + offset
        else:
            farthest = blocks.abs().argmax(-1, keepdim=True)
            half = 2 ** (self.bits - 1)
            scale, parts = blocks.gather(-1, farthest).squeeze(-1) / -half, {}
            levels = _divide(blocks, scale) + (half + 0.5)
        levels = _whole(levels.floor(), 0, top).to(torch.uint8)
        lower, upper = (levels & 15).chunk(2, dim=-1)
        parts |= _scales(scale) | {"low": (lower | (upper << 4)).flatten(-2)}
        if self.bits == 5:
            fifth = _split(levels >> 4, 8) << torch.arange(8, dtype=torch.uint8)
            parts["high"] = fifth.sum(-1, dtype=torch.uint8).flatten(-2)
        return parts

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        scale = fields["scale"].float()[..., None]
        if self.bits == 8:
            blocks = _split(fields["data"], BLOCK_DIMS).float() * scale
        elif self.has_minimum:
            blocks = self._levels(fields) * scale + fields["minimum"].float()[..., None]
        else:
            blocks = (self._levels(fields) - 2 ** (self.bits - 1)) * scale
        return blocks.flatten(-2)

    def _levels(self, fields: Mapping[str, Tensor]) -> Tensor:
        """[..., blocks, BLOCK_DIMS]"""
        import torch

        low = _split(fields["low"], BLOCK_DIMS // 2)
        levels = torch.cat((low & 15, low >> 4), dim=-1)
        if self.bits == 5:
            octets = _split(fields["high"], BLOCK_DIMS // 8)
            fifth = (octets[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
            levels = levels | (fifth.flatten(-2) << 4)
        return levels.float()


def _split(rows: Tensor, size: int) -> Tensor:
    """[..., n * size] as [..., n, size]"""
    return rows.reshape(*rows.shape[:-1], exact_div(rows.shape[-1], size), size)


def _divide(blocks: Tensor, scale: Tensor) -> Tensor:
    """By the scale as computed, not as stored: that is what llama.cpp does."""
    return blocks * (1 / scale).where(scale != 0, 0.0)[..., None]


def _whole(levels: Tensor, low: int, high: int) -> Tensor:
    return levels.nan_to_num(0.0).clamp(low, high)


def _scales(scale: Tensor) -> dict[str, Tensor]:
    import torch

    stored = scale.half()
    return {"scale": stored.where(stored.isfinite(), torch.nan)}


CODECS = {
    codec.name: codec
    for codec in (
        Ggml("q8_0", 8, has_minimum=False, max_error=0.5 / 127 + 2.0**-11),
        Ggml("q5_1", 5, has_minimum=True, max_error=1 / 31 + 2.0**-9),
        Ggml("q5_0", 5, has_minimum=False, max_error=1 / 16 + 2.0**-10),
        Ggml("q4_1", 4, has_minimum=True, max_error=1 / 15 + 2.0**-9),
        Ggml("q4_0", 4, has_minimum=False, max_error=1 / 8 + 2.0**-10),
    )
}
