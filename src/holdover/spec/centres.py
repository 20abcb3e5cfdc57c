"""How much room the centres of keys take: what some codecs store keys less of.

    rows    [mean, spread][head][dim]   of each layer whose keys are stored so
    table   [tile][dim][centre]         of each of their ropes: cosines of the pairs, then sines

CENTRE_TOKENS tokens have one centre; a tile holds TILE_CENTRES, which vectors take side by side.
Both start at multiples of their size, whatever a block holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from holdover.spec.groups import CacheSpec
from holdover.units import ceil_div

CENTRE_TOKENS = 16
TILE_CENTRES = 8
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class CentreLayout:
    """Shapes, all of fp32: `rows` by layer, `tables` by rope."""

    rows: Mapping[int, tuple[int, int, int]]
    tables: Mapping[int, tuple[int, int, int]]

    @classmethod
    def of(
        cls,
        spec: CacheSpec,
        layers: Iterable[int],
        layer_ropes: Sequence[int],
        max_context_tokens: int,
    ) -> CentreLayout:
        """`layers` store their keys less their centre; `layer_ropes` are of all layers."""
        n_tiles = ceil_div(max_context_tokens, CENTRE_TOKENS * TILE_CENTRES)
        rows: dict[int, tuple[int, int, int]] = {}
        tables: dict[int, tuple[int, int, int]] = {}
        for layer in layers:
            [keys] = [p for p in spec.groups[spec.group_of_layer[layer]].planes if p.name == "k"]
            rows[layer] = 2, keys.heads, keys.dim
            tables[layer_ropes[layer]] = n_tiles, keys.dim, TILE_CENTRES
        return cls(rows, tables)

    @property
    def nbytes(self) -> int:
        return _FP32_BYTES * sum(map(prod, (*self.rows.values(), *self.tables.values())))
