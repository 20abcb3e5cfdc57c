"""Rows as signed bytes with one bf16 scale per token and head, turned first as in `int4`.

Symmetric: a turned row's largest magnitude is 127, or 126 where the scale, which is rounded up, is
more than it need be. bf16 has the range of fp32, so rows of any size are held alike. A row that has
inf or NaN in it comes back as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdover.codecs._lanes import PAIR, in_units, row_field
from holdover.codecs._rotation import ROTATED, rotate, rotate_back
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = 127


@dataclass(frozen=True, slots=True)
class Int8:
    """`data` times `scale` is the row."""

    name: str = "int8"
    serves: bool = True
    centres_keys: bool = False
    # Half a level, when all of 512 dims are in one turned element.
    max_error: float = 0.5 / LEVELS * (1 + 2.0**-7) * 2.0**4.5
    error_from: float = 2.0**-100

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        return (
            row_field("data", DType.INT8, plane, block_tokens, plane.dim, PAIR, ROTATED),
            Field("scale", DType.BF16, ("head", "token"), (plane.heads, block_tokens)),
        )

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        rows = rotate(rows.float())
        scale = _rounded_up(rows.abs().amax(-1) / LEVELS)
        levels = rows / scale.float().where(scale > 0, 1.0)[..., None]
        data = levels.round().nan_to_num(0.0).clamp(-LEVELS, LEVELS)
        return {
            "data": in_units(data.to(torch.int8), PAIR),
            "scale": scale.where(scale.isfinite(), torch.nan),
        }

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        return rotate_back(fields["data"].flatten(-2).float() * fields["scale"].float()[..., None])


def _rounded_up(scale: Tensor) -> Tensor:
    """The least bf16 that is not smaller; what is not finite need not stay what it is."""
    import torch

    return ((scale.view(torch.int32) + 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)


CODECS = {"int8": Int8()}
