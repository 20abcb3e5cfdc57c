"""Rows as 4 bit levels, turned first so that no element stands out; a scale for each 32 dims.

4.5 bits an element where dims are a multiple of 64. Of each four dims two go with one scale and two
with the other: so either has vector lanes of its own. The 16 levels lie closer together near zero,
where a turned row has most of its elements. Of a few scales the one with the least squared error is
kept. A row beyond fp16's range, or with inf or NaN in it, comes back as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from holdover.codecs._lanes import in_units, row_field
from holdover.codecs._rotation import ROTATED, rotate, rotate_back
from holdover.codecs.base import demand
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field
from holdover.units import ceil_div, exact_div, round_up

if TYPE_CHECKING:
    from torch import Tensor

SPAN_DIMS = 64
SPAN_GROUPS = 2
UNIT_BYTES = 4  # 8 elements
# Level 8 + i is MAGNITUDES[i] times the scale, level 7 - i its negative. They make the squared
# error of normally distributed groups least, rounded to what a signed byte holds.
MAGNITUDES = (6, 18, 31, 45, 60, 77, 98, 127)
# Scales that are tried, as shares of the one at which the largest element is the largest level.
SHARES = (1.0, 0.94, 0.88, 0.82, 0.76, 1.06)


@dataclass(frozen=True, slots=True)
class Int4:
    """`data`: byte i of a row holds element 2 i (low bits) and element 2 i + 1 (high bits)."""

    name: str = "int4"
    serves: bool = True
    centres_keys: bool = True
    max_error: float = 0.27  # a group of one large element, and all others half between two levels
    error_from: float = 2.0**-7

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        demand(self.name, plane, plane.dim % 2 == 0, "an even number of dims")
        n_bytes = exact_div(plane.dim, 2)
        n_groups = SPAN_GROUPS * ceil_div(plane.dim, SPAN_DIMS)
        scales = (plane.heads, n_groups, block_tokens)
        return (
            row_field("data", DType.UINT8, plane, block_tokens, n_bytes, UNIT_BYTES, ROTATED),
            Field("scale", DType.FP16, ("head", "group", "token"), scales),
        )

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        dim = rows.shape[-1]
        groups = _grouped(rotate(rows.float()))
        scale, levels = _best(groups, _grouped(torch.ones(dim)))
        levels = _ungrouped(levels, dim)
        return {
            "data": in_units(levels[..., ::2] | (levels[..., 1::2] << 4), UNIT_BYTES),
            "scale": scale.where(scale.isfinite(), torch.nan),
        }

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        import torch

        data = fields["data"].flatten(-2)
        levels = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2).int()
        values = torch.tensor([-m for m in reversed(MAGNITUDES)] + list(MAGNITUDES)).float()
        scaled = _grouped(values[levels]) * fields["scale"].float()[..., None]
        return rotate_back(_ungrouped(scaled, levels.shape[-1]))


def _best(groups: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The scale (fp16) and the levels of least squared error; the earlier share of equal ones.

    `there` is 0 for what only fills up a group.
    """
    largest = groups.abs().amax(-1) / MAGNITUDES[-1]
    tried = [_levels(groups, there, (largest * share).half()) for share in SHARES]
    scale, levels, error = tried[0]
    for other_scale, other_levels, other_error in tried[1:]:
        better = other_error < error
        scale = other_scale.where(better, scale)
        levels = other_levels.where(better[..., None], levels)
        error = other_error.where(better, error)
    return scale, levels


def _levels(groups: Tensor, there: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The levels under a scale and their squared error, summed in halves."""
    import torch

    step = scale.float()[..., None]
    scaled = groups * (1 / step)
    size = scaled.abs()
    edges = [(a + b) / 2 for a, b in pairwise(MAGNITUDES)]
    place = torch.stack([size > edge for edge in edges]).sum(0)
    negative = scaled < 0
    value = torch.tensor(MAGNITUDES).float()[place]
    missing = (groups - value.where(~negative, -value) * step) * there
    error = missing * missing
    while error.shape[-1] > 1:
        first, second = error.chunk(2, dim=-1)
        error = first + second
    levels = (7 - place).where(negative, 8 + place).to(torch.uint8)
    return scale, levels, error.squeeze(-1)


def _grouped(rows: Tensor) -> Tensor:
    """[..., dim] as [..., groups, dims of a group], filled up with zeros."""
    import torch

    lead, dim = rows.shape[:-1], rows.shape[-1]
    missing = round_up(dim, SPAN_DIMS) - dim
    if missing:
        rows = torch.cat((rows, rows.new_zeros(*lead, missing)), dim=-1)
    n_spans = exact_div(rows.shape[-1], SPAN_DIMS)
    fours = rows.reshape(*lead, n_spans, SPAN_DIMS // 4, SPAN_GROUPS, 2).transpose(-2, -3)
    return fours.reshape(*lead, SPAN_GROUPS * n_spans, SPAN_DIMS // SPAN_GROUPS)


def _ungrouped(groups: Tensor, dim: int) -> Tensor:
    """The inverse, for rows of `dim`."""
    lead, n_spans = groups.shape[:-2], exact_div(groups.shape[-2], SPAN_GROUPS)
    fours = groups.reshape(*lead, n_spans, SPAN_GROUPS, SPAN_DIMS // 4, 2).transpose(-2, -3)
    return fours.reshape(*lead, n_spans * SPAN_DIMS)[..., :dim]


CODECS = {"int4": Int4()}
