"""Rows stored as they are, in 16 or 32 bit floating point.

One field, `data`, ordered head, token, dim: the tokens of one head are a plain matrix. But keys in
bf16 have tokens in lanes: head, pair, token, dim of the pair. Inf and NaN stay what they are, and a
magnitude past the type's largest (65504 in fp16) becomes inf.
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


@dataclass(frozen=True, slots=True)
class Raw:
    """`dtype` as stored; encoding rounds to nearest even."""

    dtype: DType
    serves: bool = True
    centres_keys: bool = False

    @property
    def name(self) -> str:
        return self.dtype.value

    @property
    def max_error(self) -> float:
        """Half a unit in the last place."""
        return {DType.FP32: 0.0, DType.BF16: 2.0**-8, DType.FP16: 2.0**-11}[self.dtype]

    @property
    def error_from(self) -> float:
        """The smallest normal magnitude."""
        return {DType.FP32: 0.0, DType.BF16: 2.0**-126, DType.FP16: 2.0**-14}[self.dtype]

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        if self.dtype is DType.BF16:
            return (row_field("data", self.dtype, plane, block_tokens, plane.dim, PAIR),)
        shape = (plane.heads, block_tokens, plane.dim)
        return (Field("data", self.dtype, ("head", "token", "dim"), shape),)

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        import torch

        stored = rows.to(getattr(torch, self.dtype.torch_name))
        return {"data": in_units(stored, PAIR) if self.dtype is DType.BF16 else stored}

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        data = fields["data"].float()
        return data.flatten(-2) if self.dtype is DType.BF16 else data


CODECS = {dtype.value: Raw(dtype) for dtype in (DType.FP32, DType.BF16, DType.FP16)}
