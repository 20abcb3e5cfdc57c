"""Rows as signed bytes with one fp32 scale per token and head.

Symmetric: a row's largest magnitude is 127. The scale is fp32, as in vLLM's int8 per token and
head, so that rows of any size are held alike; with 128 dims it costs 3 % of a row. A row that has
inf or NaN in it comes back as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdover.codecs._lanes import PAIR, in_units, row_field
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
    max_error: float = 0.5 / LEVELS + 2.0**-20  # half a level, and fp32 rounding
    error_from: float = 2.0**-100

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        return (
            row_field("data", DType.INT8, plane, block_tokens, plane.dim, PAIR),
            Field("scale", DType.FP32, ("head", "token"), (plane.heads, block_tokens)),
        )

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        rows = rows.float()
        scale = rows.abs().amax(-1) / LEVELS
        levels = rows / scale.where(scale > 0, 1.0)[..., None]
        data = levels.round().nan_to_num(0.0).clamp(-LEVELS, LEVELS)
        return {
            "data": in_units(data.to(torch.int8), PAIR),
            "scale": scale.where(scale.isfinite(), torch.nan),
        }

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        return fields["data"].flatten(-2).float() * fields["scale"][..., None]


CODECS = {"int8": Int8()}
