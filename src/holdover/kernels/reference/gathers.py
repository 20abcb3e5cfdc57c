"""What one group of layers reads in a step, worked out once and used by all of them.

A `Gather` is a rectangle [sequences, key columns]: decoding sequences together, padded to the
longest, or the one sequence of a prefill. The columns of a sequence are its sink blocks and then
its blocks from the first visible one on; padding has position NOWHERE.

    columns   | sinks | block of first_visible(first query) ... | block of last query | padding |
    hidden            [ left edge )                     ( right edge                           ]

Masks come from `Residency.first_visible` and `sink_tokens` alone, and are kept only for the
columns at the two edges that some row may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdover.kernels.base import AttentionBatch
from holdover.kernels.reference.scratch import Scratch
from holdover.spec.groups import Group
from holdover.spec.residency import Residency, step_blocks

NOWHERE = np.iinfo(np.int64).max  # position of a padding column: after every query
MAX_ROWS = 64  # query rows at a time: more would score too many keys right of the diagonal

Positions = NDArray[np.int64]
Blocks = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Edge:
    """Columns [start, stop) of a slice and where they are hidden: [sequences, rows, columns]."""

    start: int
    stop: int
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Query rows that attend together: `rows` index the step's tokens, sequence by sequence."""

    rows: Tensor
    start: int
    stop: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """`blocks` [sequences * blocks] say where to read, `starts` the positions of their first
    tokens (of padding: 0); `unseen` columns are for no query at all."""

    sequences: int
    columns: int
    blocks: Tensor
    starts: Tensor
    unseen: Tensor
    slices: tuple[RowSlice, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """The rows [row_start, row_start + n) of one sequence, at positions [start, stop)."""

    sequence: int
    row_start: int
    start: int
    stop: int
    blocks: Positions  # the logical blocks it reads


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the gathers of one group so that each fits into `capacity_bytes` of scratch memory.

    `locate` turns block numbers into what `Gather.blocks` holds; a dead block (-1) may become any.
    """

    group: Group
    block_tokens: int
    scratch: Scratch
    capacity_bytes: int
    locate: Callable[[Blocks], Tensor]

    def plan(self, batch: AttentionBatch) -> tuple[Gather, ...]:
        table = batch.block_tables[self.group.index]
        queries = list(_queries(batch, self.group.residency, self.block_tokens))
        decoding = [query for query in queries if query.stop - query.start == 1]
        prefilling = [query for query in queries if query.stop - query.start > 1]
        return (
            *(self._decode(pack, table) for pack in self._pack(decoding)),
            *(self._prefill(query, table) for query in prefilling),
        )

    def _pack(self, queries: Iterable[Query]) -> list[list[Query]]:
        """Sequences to attend together, longest first, none padded to over twice its length."""
        packs: list[list[Query]] = []
        for query in sorted(queries, key=lambda q: -len(q.blocks)):
            if packs and self._fits(packs[-1], query):
                packs[-1].append(query)
            else:
                packs.append([query])
        return packs

    def _fits(self, pack: list[Query], query: Query) -> bool:
        longest = len(pack[0].blocks)
        tokens = longest * self.block_tokens * (len(pack) + 1)
        fits = self.scratch.nbytes(tokens, rows=1) <= self.capacity_bytes
        return fits and 2 * len(query.blocks) > longest

    def _decode(self, pack: list[Query], table: Blocks) -> Gather:
        logical = np.full((len(pack), len(pack[0].blocks)), -1)
        for row, query in enumerate(pack):
            logical[row, : len(query.blocks)] = query.blocks
        columns = _column_positions(logical, self.block_tokens)
        positions = np.array([[query.start] for query in pack])
        hidden = _hidden(columns, positions, self.group.residency)
        blocks = table[np.array([[query.sequence] for query in pack]), logical]
        edge = Edge(0, columns.shape[1], torch.from_numpy(hidden))
        rows = torch.tensor([query.row_start for query in pack])
        return Gather(
            sequences=len(pack),
            columns=columns.shape[1],
            blocks=self.locate(blocks.reshape(-1)),
            starts=self._starts(logical),
            unseen=torch.from_numpy(np.flatnonzero(hidden)),
            slices=(RowSlice(rows, 0, columns.shape[1], (edge,)),),
        )

    def _starts(self, logical: Positions) -> Tensor:
        return torch.from_numpy(np.maximum(logical, 0).reshape(-1) * self.block_tokens)

    def _prefill(self, query: Query, table: Blocks) -> Gather:
        residency = self.group.residency
        columns = _column_positions(query.blocks[None], self.block_tokens)
        n_rows = min(self.scratch.most_rows(columns.size, self.capacity_bytes), MAX_ROWS)
        assert n_rows > 0, f"no scratch for one query over {columns.size} tokens"
        positions = np.arange(query.start, query.stop)
        behind = residency.first_visible(query.start)
        seen = (columns < query.stop) & ((columns >= behind) | (columns < residency.sink_tokens))
        slices = (
            _row_slice(columns, positions[at : at + n_rows], query.row_start + at, residency)
            for at in range(0, len(positions), n_rows)
        )
        return Gather(
            sequences=1,
            columns=columns.size,
            blocks=self.locate(table[query.sequence, query.blocks]),
            starts=self._starts(query.blocks),
            unseen=torch.from_numpy(np.flatnonzero(~seen)),
            slices=tuple(slices),
        )


def _queries(batch: AttentionBatch, residency: Residency, block_tokens: int) -> Iterator[Query]:
    starts = batch.query_start.tolist()
    for sequence, context in enumerate(batch.context_tokens.tolist()):
        n_queries = starts[sequence + 1] - starts[sequence]
        if n_queries:
            need = step_blocks(residency, context - n_queries, context, block_tokens)
            blocks = np.r_[0 : need.sink_stop, need.start : need.stop]
            yield Query(sequence, starts[sequence], context - n_queries, context, blocks)


def _row_slice(
    columns: Positions, positions: Positions, row_start: int, residency: Residency
) -> RowSlice:
    """Consecutive rows of a prefill: the columns some row sees, and those not every row sees."""
    low, high = residency.first_visible(positions[[0, -1]])
    sink_stop, left_start, left_stop, right_start, stop = np.searchsorted(
        columns[0], [residency.sink_tokens, low, high, positions[0] + 1, positions[-1] + 1]
    ).tolist()
    start = 0 if residency.sink_tokens else left_start
    edges = tuple(  # they may overlap
        Edge(
            a - start,
            b - start,
            torch.from_numpy(_hidden(columns[:, a:b], positions[None], residency)),
        )
        for a, b in ((max(start, sink_stop), left_stop), (right_start, stop))
        if a < b
    )
    rows = torch.arange(row_start, row_start + len(positions))
    return RowSlice(rows, start, stop, edges)


def _hidden(columns: Positions, positions: Positions, residency: Residency) -> NDArray[np.bool_]:
    """Which keys are not for which queries: [sequences, rows, columns], from their positions."""
    key, query = columns[:, None, :], positions[:, :, None]
    behind = (key < residency.first_visible(query)) & (key >= residency.sink_tokens)
    return (key > query) | behind


def _column_positions(logical: Positions, block_tokens: int) -> Positions:
    """Token positions [sequences, columns] of logical blocks [sequences, blocks]."""
    positions = logical[..., None] * block_tokens + np.arange(block_tokens)
    return np.where(logical[..., None] < 0, NOWHERE, positions).reshape(len(logical), -1)
