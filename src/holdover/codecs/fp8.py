"""Rows in 8 bit floating point (e4m3), one byte an element and nothing beside it.

Rounds to nearest even and stops at 448 either way, as other engines' unscaled fp8 caches do; NaN
stays NaN. Magnitudes below 2**-6 have fewer digits, below 2**-10 none: `int8` has a scale per row
where that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Fp8:
    """`data`: the bits of each element, ordered head, token, dim."""

    name: str = "fp8"
    serves: bool = True
    centres_keys: bool = False
    max_error: float = 2.0**-4
    error_from: float = 2.0**-6

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        shape = (plane.heads, block_tokens, plane.dim)
        return (Field("data", DType.FP8, ("head", "token", "dim"), shape),)

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        held = rows.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return {"data": held.view(torch.uint8)}

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        import torch

        return fields["data"].contiguous().view(torch.float8_e4m3fn).float()


CODECS = {"fp8": Fp8()}
