"""Rows stored as they are, in 16 or 32 bit floating point.

One field, `data`, ordered head, token, dim: the tokens of one head are a plain matrix. Inf and NaN
stay what they are, and a magnitude past the type's largest (65504 in fp16) becomes inf.
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


@dataclass(frozen=True, slots=True)
class Raw:
    """`dtype` as stored; encoding rounds to nearest even."""

    dtype: DType

    @property
    def name(self) -> str:
        return self.dtype.value

    @property
    def max_error(self) -> float:
        """Half a unit in the last place; holds from the smallest normal magnitude on."""
        return {DType.FP32: 0.0, DType.BF16: 2.0**-8, DType.FP16: 2.0**-11}[self.dtype]

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        shape = (plane.heads, block_tokens, plane.dim)
        return (Field("data", self.dtype, ("head", "token", "dim"), shape),)

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        return {"data": rows.to(getattr(torch, self.dtype.torch_name))}

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        return fields["data"].float()


CODECS = {dtype.value: Raw(dtype) for dtype in (DType.FP32, DType.BF16, DType.FP16)}
