"""Element order for vector kernels: keys with tokens in lanes, values with dims in lanes.

    keys    head, unit, token, element    one unit of all tokens side by side, then the next
    values  head, token, unit, element    rows in a run

A unit is a few neighbouring elements, or bytes, of a row: what one 16 or 32 bit lane holds. A row
that is no whole number of them has units of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field
from holdover.units import exact_div

if TYPE_CHECKING:
    from torch import Tensor

PAIR = 2  # elements that are multiplied and added at once


def row_field(
    name: str,
    dtype: DType,
    plane: Plane,
    block_tokens: int,
    n_items: int,
    unit_items: int,
    element: str = "element",
) -> Field:
    """A field with `n_items` items for each row of the plane, which are named `element`."""
    unit_items = _unit_items(n_items, unit_items)
    n_units = exact_div(n_items, unit_items)
    if plane.name == "k":
        axes, inner = ("head", "unit", "token", element), (n_units, block_tokens, unit_items)
    else:
        axes, inner = ("head", "token", "unit", element), (block_tokens, n_units, unit_items)
    return Field(name, dtype, axes, (plane.heads, *inner))


def in_units(rows: Tensor, unit_items: int) -> Tensor:
    """[..., items] as [..., units, items of a unit]; flattened they are what they were."""
    size = _unit_items(rows.shape[-1], unit_items)
    return rows.reshape(*rows.shape[:-1], exact_div(rows.shape[-1], size), size)


def _unit_items(n_items: int, unit_items: int) -> int:
    return unit_items if n_items % unit_items == 0 else 1
