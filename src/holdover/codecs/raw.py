"""Rows stored as they are, in 16 or 32 bit floating point.

One field, `data`, ordered head, token, dim: the tokens of one head are a plain matrix.
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

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        shape = (plane.heads, block_tokens, plane.dim)
        return (Field("data", self.dtype, ("head", "token", "dim"), shape),)

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        targets = {
            DType.FP32: torch.float32,
            DType.BF16: torch.bfloat16,
            DType.FP16: torch.float16,
        }
        return {"data": rows.to(targets[self.dtype])}

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        return fields["data"].float()


CODECS = {dtype.value: Raw(dtype) for dtype in (DType.FP32, DType.BF16, DType.FP16)}
