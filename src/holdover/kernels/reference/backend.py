"""Writes a step's rows into the arena and attends to what the arena holds.

Everything that the layers of a group share (where rows go, what is read, masks) is worked out at
the first layer of a step. Large temporaries live in the workspace; beyond it, `attend` allocates
its result, a slice's queries and results in fp32, the piece of a plane being decoded, and of a
sparse layer the bounds and which keys a slice's queries leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from holdover.kernels._centre import Centre, Centres
from holdover.kernels.base import AttentionBatch
from holdover.kernels.reference.gathers import Gather, Planner, RowSlice
from holdover.kernels.reference.scratch import FLOAT_BYTES, Scratch
from holdover.kernels.reference.sparse import Bounds, first_positions, left_out
from holdover.kernels.reference.views import (
    PIECE_BYTES,
    FieldView,
    PlaneView,
    block_locator,
    block_unit_bytes,
)
from holdover.spec.groups import Group
from holdover.spec.layout import CacheLayout
from holdover.spec.sparse import BOUNDS

_COLUMNS = 256  # of scores, looked at a second time


@dataclass(frozen=True, slots=True)
class Reference:
    """The backend of one arena; `planes` are the views of (layer, plane)."""

    layout: CacheLayout
    planes: Mapping[tuple[int, str], PlaneView]
    workspace: Tensor  # fp32
    centres: Centres
    bounds: Mapping[int, Bounds]  # of sparse layers

    @classmethod
    def bind(
        cls, arena: Tensor, layout: CacheLayout, workspace: Tensor, centres: Centres
    ) -> Reference:
        planes = {
            (layer, plane.name): PlaneView.of(arena, layout, group.index, layer, plane.name)
            for group in layout.spec.groups
            for layer in group.layers
            for plane in group.planes
        }
        bounds = {
            layer: _bounds(arena, layout, group.index, layer, planes[layer, "k"])
            for group in layout.spec.groups
            for layer in group.layers
            if group.has_bounds(layer)
        }
        return cls(layout, planes, workspace.view(torch.float32), centres, bounds)

    def begin(self, batch: AttentionBatch) -> Step:
        destinations = tuple(
            _destinations(batch, self.layout, group) for group in range(len(self.layout.blocks))
        )
        return Step(self, batch, destinations)


@dataclass(frozen=True, slots=True)
class Destinations:
    """For each token of a step, its block (in units), its place in the block, its position."""

    blocks: Tensor
    tokens: Tensor
    positions: Tensor

    def filled(self, block_tokens: int) -> tuple[Tensor, Tensor]:
        """Blocks that become full, and the positions of their first tokens."""
        last = self.tokens == block_tokens - 1
        return self.blocks[last], self.positions[last] - (block_tokens - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `gathers` fills at the first layer of each group."""

    backend: Reference
    batch: AttentionBatch
    destinations: tuple[Destinations, ...]
    gathers: dict[tuple[int, int], tuple[Gather, ...]] = field(default_factory=dict)

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        spec = self.backend.layout.spec
        assert spec.storage_layer(layer) == layer, f"layer {layer} has no rows of its own"
        to = self.destinations[spec.group_of_layer[layer]]
        for plane, plane_rows in rows.items():
            stored = plane_rows
            if plane == "k" and layer in self.backend.centres:
                stored = self.backend.centres[layer].stored(plane_rows, to.positions)
            self.backend.planes[layer, plane].write(to.blocks, to.tokens, stored)
        if layer in self.backend.bounds and "k" in rows:
            filled, starts = to.filled(spec.block_tokens)
            centre = self.backend.centres.get(layer)
            self.backend.bounds[layer].update(filled, starts, spec.block_tokens, centre)

    def attend(
        self,
        layer: int,
        query: Tensor,
        scale: float,
        softcap: float = 0.0,
        *,
        sink_query: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        layout = self.backend.layout
        group = layout.blocks[layout.spec.group_of_layer[layer]].group
        storage = layout.spec.storage_layer(layer)
        scratch = Scratch.of(group, query.shape[1])
        result = query.new_empty(*query.shape[:2], scratch.attended.values.dim)
        for gather in self._gathers(group.index, scratch):
            keys, values, rows, room = self._carve(scratch, gather)
            for name, of_plane in rows.items():
                into = _by_block(of_plane, layout.spec.block_tokens)
                self.backend.planes[storage, name].read(gather.blocks, into)
                if name == "k" and storage in self.backend.centres:
                    _restore(into, self.backend.centres[storage], gather.starts)
            values.flatten(1, 2).index_fill_(1, gather.unseen, 0.0)  # 0 * NaN would be NaN
            for part in gather.slices:
                scaled = query[part.rows].float() * scale
                unread = self._left_out(group, storage, scaled, gather, part)
                sinks = None
                if sink_query is not None:
                    sinks = sink_query[part.rows].float() * scale, group.residency.sink_tokens
                mixed = _attend(
                    scaled, keys, values, room, part, softcap, sinks, sink_logits, unread
                )
                result[part.rows] = mixed.to(result.dtype)
        return result

    def _left_out(
        self, group: Group, layer: int, query: Tensor, gather: Gather, part: RowSlice
    ) -> Tensor | None:
        """`query` is of the part's rows."""
        if layer not in self.backend.bounds or group.sparse is None:
            return None
        block_tokens = self.backend.layout.spec.block_tokens
        first = first_positions(self.batch, group.sparse, block_tokens)
        if first is None:
            return None
        positions = self.destinations[group.index].positions[part.rows]
        return left_out(
            self.backend.bounds[layer], group.sparse, query, gather, part,
            first[part.rows], positions, block_tokens,
        )  # fmt: skip

    def _gathers(self, group: int, scratch: Scratch) -> tuple[Gather, ...]:
        key = (group, scratch.query_heads)
        if key not in self.gathers:
            layout, workspace = self.backend.layout, self.backend.workspace
            planner = Planner(
                layout.blocks[group].group,
                layout.spec.block_tokens,
                scratch,
                workspace.numel() * FLOAT_BYTES,
                block_locator(layout, group),
            )
            self.gathers[key] = planner.plan(self.batch)
        return self.gathers[key]

    def _carve(
        self, scratch: Scratch, gather: Gather
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """Keys and values [heads, sequences, columns, dim], what of them each plane's rows are,
        and all the room left for scores."""
        attended, tokens = scratch.attended, gather.sequences * gather.columns
        n_keys, n_values, _ = scratch.parts(tokens, rows=0)
        workspace = self.backend.workspace
        shape = attended.heads, gather.sequences, gather.columns
        keys = _first(workspace, (*shape, attended.query_dim))
        parts = torch.split(keys, [plane.dim for plane in attended.keys], dim=-1)
        rows = {plane.name: part for plane, part in zip(attended.keys, parts, strict=True)}
        if not attended.values_are_keys:
            rows["v"] = _first(workspace[n_keys:], (*shape, attended.values.dim))
        return keys, rows[attended.values.name], rows, workspace[n_keys + n_values :]


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    room: Tensor,
    part: RowSlice,
    softcap: float,
    sinks: tuple[Tensor, int] | None,
    sink_logits: Tensor | None,
    unread: Tensor | None,
) -> Tensor:
    """`query` [sequences * rows, query_heads, dim], scaled, over [heads, sequences, columns, dim].

    A batched matrix product has one entry per KV head and sequence; the query heads that share a
    KV head are more rows of it. `sinks` are another such query and how many sinks it meets: a
    sequence's first columns.
    """
    heads, sequences = keys.shape[:2]
    n_tokens, query_heads, dim = query.shape
    shared, n_rows, n_columns = query_heads // heads, n_tokens // sequences, part.stop - part.start

    def by_head(rows: Tensor) -> Tensor:
        split = rows.view(sequences, n_rows, heads, shared, dim).permute(2, 0, 1, 3, 4)
        return split.reshape(heads * sequences, n_rows * shared, dim)

    scores = _first(room, (heads, sequences, n_rows, shared, n_columns))
    flat = scores.view(heads * sequences, n_rows * shared, n_columns)
    seen_keys, seen_values = (
        rows.flatten(0, 1)[:, part.start : part.stop] for rows in (keys, values)
    )
    torch.bmm(by_head(query), seen_keys.transpose(1, 2), out=flat)
    if sinks is not None:
        sink_query, n_sinks = sinks
        flat[..., :n_sinks] = by_head(sink_query) @ seen_keys[:, :n_sinks].transpose(1, 2)
    if softcap:
        flat.div_(softcap).tanh_().mul_(softcap)
    for edge in part.edges:
        hidden = edge.hidden[None, :, :, None, :]
        scores[..., edge.start : edge.stop].masked_fill_(hidden, -torch.inf)
    if unread is not None:
        scores.masked_fill_(unread, -torch.inf)
    weight: Tensor | float = 1.0
    if sink_logits is not None:
        of_rows = sink_logits.view(heads, 1, 1, shared).expand(heads, sequences, n_rows, shared)
        weight = _share_beside(flat, of_rows.reshape(*flat.shape[:2], 1))
    torch.softmax(flat, dim=-1, out=flat)
    mixed = torch.bmm(flat, seen_values).mul_(weight)
    split = mixed.view(heads, sequences, n_rows, shared, -1).permute(1, 2, 0, 3, 4)
    return split.reshape(n_tokens, query_heads, -1)


def _share_beside(scores: Tensor, logit: Tensor) -> Tensor:
    """What is left of a softmax over the last axis of `scores` when `logit` [..., 1] joins it."""
    most = torch.maximum(scores.amax(-1, keepdim=True), logit)
    total = torch.zeros_like(most)
    for column in torch.split(scores, _COLUMNS, dim=-1):  # so that little is held beside the scores
        total += (column - most).exp_().sum(-1, keepdim=True)
    return total / (total + (logit - most).exp_())


def _bounds(arena: Tensor, layout: CacheLayout, group: int, layer: int, keys: PlaneView) -> Bounds:
    [placed] = layout.blocks[group].fields_of(layer, BOUNDS)
    heads, _, dim = placed.field.shape
    view = FieldView.of(arena, placed, block_unit_bytes(layout, group))
    return Bounds(view, keys, heads, dim)


def _destinations(batch: AttentionBatch, layout: CacheLayout, group: int) -> Destinations:
    n_queries = np.diff(batch.query_start)
    sequences = np.repeat(np.arange(len(n_queries)), n_queries)
    ends = batch.context_tokens - batch.query_start[1:]
    positions = np.arange(len(sequences)) + ends[sequences]
    block_tokens = layout.spec.block_tokens
    blocks = batch.block_tables[group][sequences, positions // block_tokens]
    assert (blocks >= 0).all(), f"group {group}: a new token has no block"
    return Destinations(
        block_locator(layout, group)(blocks),
        torch.from_numpy(positions % block_tokens),
        torch.from_numpy(positions),
    )


def _restore(keys: Tensor, centre: Centre, starts: Tensor) -> None:
    """Decoded `keys` [blocks, block_tokens, heads, dim], a piece at a time."""
    places = torch.arange(keys.shape[1])
    piece = max(1, PIECE_BYTES // (keys[0].numel() * keys.element_size()))
    for at, part in zip(torch.split(starts, piece), torch.split(keys, piece), strict=True):
        centre.restore(part, at[:, None] + places)


def _by_block(rows: Tensor, block_tokens: int) -> Tensor:
    """[heads, sequences, columns, dim] as [blocks, block_tokens, heads, dim]."""
    heads, *_, dim = rows.shape
    return rows.view(heads, -1, block_tokens, dim).permute(1, 2, 0, 3)


def _first(room: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The first elements of a flat tensor as one of the given shape."""
    return room[: prod(shape)].view(shape)
