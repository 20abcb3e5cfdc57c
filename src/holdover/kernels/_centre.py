"""What keys are stored less of, so that what they have in common takes no levels.

Turned back to position 0, a head's keys have a mean that is far from 0, and vary far more in some
dims than in others. The mean, turned to each of CENTRE_TOKENS tokens and averaged, is the centre of
these tokens. A backend stores (key - centre) / spread, and scores (query x spread) with that; to
each score it adds query x centre. Exactly, nothing changes. All follows from a token's position
alone, so rows may be copied and shared as any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.spec.centres import CENTRE_TOKENS, TILE_CENTRES


@dataclass(frozen=True, slots=True)
class Centre:
    """Of one layer's keys; the shapes are `CentreLayout`'s, both fp32. Layers share tables."""

    rows: Tensor
    table: Tensor

    def stored(self, keys: Tensor, positions: Tensor) -> Tensor:
        """What is stored of `keys` [..., heads, dim] of tokens at int64 positions [...]."""
        return (keys - self._at(positions)) / self.rows[1]

    def restore(self, keys: Tensor, positions: Tensor) -> None:
        """The inverse of `stored`, in place."""
        keys *= self.rows[1]
        keys += self._at(positions)

    def _at(self, positions: Tensor) -> Tensor:
        n = positions // CENTRE_TOKENS
        turned = self.table[n // TILE_CENTRES, :, n % TILE_CENTRES].unsqueeze(-2)
        cosines, sines = turned.chunk(2, dim=-1)
        first, second = self.rows[0].chunk(2, dim=-1)
        return torch.cat(
            (first * cosines - second * sines, second * cosines + first * sines), dim=-1
        )


Centres = Mapping[int, Centre]
"""By the layer that stores the keys; other layers' keys are stored as they come."""


def turn_table(turns: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A table of `shape` for a rope that turns its pairs by `turns` [dim / 2], in radians a token.

    The average of a few turns is the turn to their middle, made shorter: next to nothing is left
    of a pair that comes around within them.
    """
    n_tiles, dim, _ = shape
    turns = turns.double()
    middles = torch.arange(n_tiles * TILE_CENTRES).double() * CENTRE_TOKENS
    middles += (CENTRE_TOKENS - 1) / 2
    single = CENTRE_TOKENS * torch.sin(turns / 2)
    shorter = torch.where(single == 0, 1.0, torch.sin(CENTRE_TOKENS * turns / 2) / single)
    angles = middles[:, None] * turns
    table = torch.cat((angles.cos() * shorter, angles.sin() * shorter), dim=-1)
    return table.view(n_tiles, TILE_CENTRES, dim).transpose(1, 2).float().contiguous()
