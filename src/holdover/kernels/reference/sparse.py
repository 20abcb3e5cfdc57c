"""Which blocks each query reads where a layer is sparse, worked out plainly; see `spec.sparse`.

The reference reads all blocks and hides those that were not chosen: it is the oracle of backends
that leave them alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdover.kernels._centre import Centre
from holdover.kernels.base import AttentionBatch
from holdover.kernels.reference.gathers import Gather, RowSlice
from holdover.kernels.reference.views import FieldView, PlaneView
from holdover.spec.sparse import Sparse


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one layer's keys, and the keys they are of."""

    edges: FieldView  # [head, edge, dim] of each block
    keys: PlaneView
    heads: int
    dim: int

    def update(
        self, blocks: Tensor, starts: Tensor, block_tokens: int, centre: Centre | None
    ) -> None:
        """Of `blocks` (in units) that have just become full; they start at positions `starts`."""
        if not len(blocks):
            return
        rows = torch.empty(len(blocks), block_tokens, self.heads, self.dim)
        self.keys.read(blocks, rows)
        if centre is not None:
            centre.restore(rows, starts[:, None] + torch.arange(block_tokens))
        edges = torch.stack((-_rounded_up(-rows.amin(1)), _rounded_up(rows.amax(1))), dim=2)
        self.edges.write(blocks, starts, edges.bfloat16())  # one value a block

    def expected(self, query: Tensor, blocks: Tensor, reach: float) -> Tensor:
        """Largest scores, [sequences, rows, heads, shared, blocks]: the bounds at a reach of 1. Of
        a block that is not full anything.

        `query` is [sequences, rows, heads, shared, dim], `blocks` [sequences, blocks].
        """
        edges = self.edges.read(blocks.reshape(-1), 1)[:, 0].float()
        least, most = edges.view(*blocks.shape, *edges.shape[1:]).unbind(3)
        beyond = query.abs() * reach
        low = torch.einsum("srhgd,sbhd->srhgb", (query - beyond) / 2, least)
        return low + torch.einsum("srhgd,sbhd->srhgb", (query + beyond) / 2, most)


def left_out(
    bounds: Bounds,
    sparse: Sparse,
    query: Tensor,
    gather: Gather,
    part: RowSlice,
    first: Tensor,
    positions: Tensor,
    block_tokens: int,
) -> Tensor | None:
    """Where keys of blocks that were not chosen lie: [heads, sequences, rows, 1, columns].

    `query` [sequences * rows, query heads, dim], scaled; `positions` of the rows, and the first
    ones that leave anything out. None where no row does.
    """  # fmt: skip
    if not (positions >= first).any():
        return None
    n = gather.sequences
    heads = query.view(n, -1, bounds.heads, query.shape[1] // bounds.heads, query.shape[2])
    scores = bounds.expected(heads, gather.blocks.view(n, -1), sparse.reach)
    latest = (positions // block_tokens).view(n, -1, 1, 1)
    numbers = torch.arange(scores.shape[-1])
    candidate = (numbers >= sparse.sink_blocks) & (numbers <= latest - sparse.latest_blocks)
    shares = scores.masked_fill(~candidate.unsqueeze(3), -torch.inf).softmax(-1)
    promise = shares.sum(3).masked_fill(~candidate, -torch.inf)
    order = promise.sort(dim=3, descending=True, stable=True).indices
    out = candidate.expand_as(promise).scatter(3, order[..., : sparse.blocks], False)
    out = out & (positions >= first).view(n, -1, 1, 1)
    columns = out.permute(2, 0, 1, 3).repeat_interleave(block_tokens, dim=3)
    return columns[..., part.start : part.stop].unsqueeze(3)


def first_positions(batch: AttentionBatch, sparse: Sparse, block_tokens: int) -> Tensor | None:
    """Of each of the step's tokens, from where on its sequence's queries leave something out."""
    if batch.prompt_tokens is None:
        return None
    firsts = [sparse.first_position(n, block_tokens) for n in batch.prompt_tokens.tolist()]
    return torch.from_numpy(np.repeat(np.array(firsts), np.diff(batch.query_start)))


def _rounded_up(x: Tensor) -> Tensor:
    """The least bf16 that is not smaller, as fp32."""
    bits = x.view(torch.int32)
    return (torch.where(bits < 0, bits, bits + 0xFFFF) & -0x10000).view(torch.float32)
