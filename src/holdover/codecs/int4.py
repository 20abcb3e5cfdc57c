"""Rows as 4 bit levels in groups of 64 dims, each with its own scale and minimum in fp16.

4.5 bits an element where dims are a multiple of 64; a shorter last group has a scale of its own.
An element is `minimum + level * scale`, level 0 to 15. A group beyond fp16's range, or with inf or
NaN in it, comes back as NaN. `q4_1` has groups of half the size and costs 5 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdover.codecs._lanes import in_units, row_field
from holdover.codecs.base import demand
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field
from holdover.units import ceil_div, exact_div, round_up

if TYPE_CHECKING:
    from torch import Tensor

GROUP_DIMS = 64
LEVELS = 15
UNIT_BYTES = 4  # 8 elements


@dataclass(frozen=True, slots=True)
class Int4:
    """`data`: byte i of a row holds element 2 i (low bits) and element 2 i + 1 (high bits)."""

    name: str = "int4"
    serves: bool = True
    max_error: float = 1 / LEVELS + 2.0**-9  # half of a level of 2/15, and fp16 rounding
    error_from: float = 2.0**-9

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        demand(self.name, plane, plane.dim % 2 == 0, "an even number of dims")
        n_bytes = exact_div(plane.dim, 2)
        axes = ("head", "group", "token")
        groups = (plane.heads, ceil_div(plane.dim, GROUP_DIMS), block_tokens)
        return (
            row_field("data", DType.UINT8, plane, block_tokens, n_bytes, UNIT_BYTES),
            Field("scale", DType.FP16, axes, groups),
            Field("minimum", DType.FP16, axes, groups),
        )

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        dim = rows.shape[-1]
        groups = _grouped(rows.float())
        low, high = groups.aminmax(dim=-1)
        minimum = low.half() + 0.0  # no negative zero: which zero is least depends on order
        scale = ((high - minimum.float()) / LEVELS).half()
        steps = scale.float().where(scale > 0, torch.inf)
        levels = ((groups - minimum.float()[..., None]) / steps[..., None]).round()
        levels = levels.nan_to_num(0.0).clamp(0, LEVELS).to(torch.uint8).flatten(-2)[..., :dim]
        lower, upper = levels[..., ::2], levels[..., 1::2]
        usable = scale.isfinite() & minimum.isfinite()
        return {
            "data": in_units(lower | (upper << 4), UNIT_BYTES),
            "scale": scale.where(usable, torch.nan),
            "minimum": minimum,
        }

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        import torch

        data = fields["data"].flatten(-2)
        levels = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2).float()
        dim = levels.shape[-1]
        scale, minimum = fields["scale"].float()[..., None], fields["minimum"].float()[..., None]
        return (_grouped(levels) * scale + minimum).flatten(-2)[..., :dim]


def _grouped(rows: Tensor) -> Tensor:
    """[..., dim] as [..., groups, GROUP_DIMS]; the last element fills up the last group."""
    import torch

    missing = round_up(rows.shape[-1], GROUP_DIMS) - rows.shape[-1]
    if missing:
        rows = torch.cat((rows, rows[..., -1:].expand(*rows.shape[:-1], missing)), dim=-1)
    return rows.reshape(*rows.shape[:-1], exact_div(rows.shape[-1], GROUP_DIMS), GROUP_DIMS)


CODECS = {"int4": Int4()}
