"""Rows turned so that no element stands out: signs, then a Walsh-Hadamard transform.

It is orthonormal, so products of two turned rows are those of the rows, and a sum of turned rows
turned back is the sum of the rows: kernels turn queries and results, never what is stored. The
transform spans the largest power of two that divides a row's dims; signs keep rows that are like
one of its own patterns (all elements equal, say) from becoming a single large element.

Everything is in fp32 and in one order, adds and then one factor, so that `native/rotation.hpp`
gives the same bytes.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Bit d % 64 is set where element d changes its sign: 2^64 over the golden ratio, which is like no
# row of the transform.
SIGNS = 0x9E3779B97F4A7C15

ROTATED = "rotated_element"
"""What fields call their elements when rows are turned: rows from before are no hit."""


def span(dim: int) -> int:
    """Elements that are mixed with one another."""
    return dim & -dim


def rotate(rows: Tensor) -> Tensor:
    """[..., dim] float32, turned."""
    return _transform(rows * _signs(rows))


def rotate_back(rows: Tensor) -> Tensor:
    """The inverse of `rotate`."""
    return _transform(rows) * _signs(rows)


def _signs(rows: Tensor) -> Tensor:
    import torch

    dim = rows.shape[-1]
    return torch.tensor([-1.0 if SIGNS >> (d % 64) & 1 else 1.0 for d in range(dim)])


def _transform(rows: Tensor) -> Tensor:
    import torch

    width, step = span(rows.shape[-1]), 1
    while step < width:
        pairs = rows.reshape(*rows.shape[:-1], rows.shape[-1] // (2 * step), 2, step)
        first, second = pairs.unbind(-2)
        rows = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        step *= 2
    return rows * (1 / sqrt(width))
