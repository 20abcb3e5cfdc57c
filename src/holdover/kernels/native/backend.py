"""Calls the C++ kernels: once per layer to write a step's rows and once to attend.

What the layers of a group share (offsets of blocks, first visible positions) is worked out once per
step. Beyond the workspace, `attend` allocates its result and a few integers per task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdover.kernels._centre import Centre, Centres
from holdover.kernels.base import AttentionBatch
from holdover.kernels.native.availability import chosen_isa, field_strides
from holdover.kernels.native.threads import torch_parallel
from holdover.spec.layers import Attended
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.sparse import BOUNDS
from holdover.units import ceil_div

_FIELDS = (("data", "low"), ("scale",), ("minimum",), ("high",))  # as C++ wants them
_NOTHING = (0, 0, 0, 0, 0)
_NO_ROWS = (0, False, 0, 0)


@dataclass(frozen=True, slots=True)
class Native:
    """The backend of one arena; the tensors are kept since C++ has only their addresses."""

    module: ModuleType
    layout: CacheLayout
    cache: Any
    planes: Mapping[tuple[int, str], Any]
    isa: str
    held: tuple[Tensor, Tensor, Centres]

    @classmethod
    def bind(
        cls,
        module: ModuleType,
        arena: Tensor,
        layout: CacheLayout,
        limits: Limits,
        workspace: Tensor,
        centres: Centres,
    ) -> Native:
        isa = chosen_isa(module)
        cache = module.Cache(
            arena=arena.data_ptr(),
            workspace=workspace.data_ptr(),
            workspace_bytes=workspace.nbytes,
            block_tokens=layout.spec.block_tokens,
            isa=isa,
            parallel=torch_parallel(),
            threads=limits.threads,
        )
        cache.set_limits(
            limits.max_sequences, ceil_div(limits.max_context_tokens, layout.spec.block_tokens)
        )
        planes = {
            (layer, plane.name): native_plane(
                module,
                layout,
                group.index,
                layer,
                plane.name,
                centres.get(layer) if plane.name == "k" else None,
            )
            for group in layout.spec.groups
            for layer in group.layers
            for plane in group.planes
        }
        for layer, name in planes:
            if name == "k":
                cache.set_planes(layer, planes[layer, "k"], planes[layer, "v"])
        return cls(module, layout, cache, planes, isa, (arena, workspace, centres))

    def begin(self, batch: AttentionBatch) -> Step:
        starts = np.ascontiguousarray(batch.query_start, dtype=np.int32)
        contexts = np.ascontiguousarray(batch.context_tokens, dtype=np.int32)
        n_queries = np.diff(starts)
        positions = np.arange(starts[-1]) + np.repeat(contexts - starts[1:], n_queries)
        groups = tuple(
            self._group(group, batch, starts, contexts, positions)
            for group in range(len(self.layout.blocks))
        )
        return Step(self, groups)

    def _group(
        self,
        group: int,
        batch: AttentionBatch,
        starts: np.ndarray[Any, Any],
        contexts: np.ndarray[Any, Any],
        positions: np.ndarray[Any, Any],
    ) -> Any:
        table = batch.block_tables[group].astype(np.int64)
        offsets = np.where(table < 0, -1, self.layout.block_offset(group, np.maximum(table, 0)))
        residency = self.layout.blocks[group].group.residency
        first_visible = residency.first_visible(positions).astype(np.int32)
        step = self.module.GroupStep(
            self.cache, starts, contexts, offsets, first_visible, residency.sink_tokens
        )
        sparse = self.layout.blocks[group].group.sparse
        if sparse is not None:
            prompts = contexts if batch.prompt_tokens is None else batch.prompt_tokens
            step.read_few(
                np.ascontiguousarray(prompts, dtype=np.int32),
                sparse.sink_blocks,
                sparse.blocks,
                sparse.latest_blocks,
                sparse.reach,
            )
        return step


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `groups` are its views in C++."""

    backend: Native
    groups: tuple[Any, ...]

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        spec = self.backend.layout.spec
        assert spec.storage_layer(layer) == layer, f"layer {layer} has no rows of its own"
        group = self.groups[spec.group_of_layer[layer]]
        for name, plane_rows in rows.items():
            held = _readable(plane_rows)
            token, head, _ = held.stride()
            plane = self.backend.planes[layer, name]
            group.write(plane, held.data_ptr(), held.dtype == torch.bfloat16, token, head)

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
        spec, planes = self.backend.layout.spec, self.backend.planes
        storage = spec.storage_layer(layer)
        group = spec.groups[spec.group_of_layer[layer]]
        held = _readable(query)
        sinks = None if sink_query is None else _readable(sink_query)
        assert sinks is None or (sinks.shape, sinks.dtype) == (held.shape, held.dtype)
        assert sink_logits is None or sink_logits.dtype == torch.float32
        logits = None if sink_logits is None else sink_logits.contiguous()
        n_tokens, query_heads, _ = held.shape
        attended = Attended.of(group.planes)
        assert attended is not None
        result = held.new_empty(n_tokens, query_heads, attended.values.dim)
        of_group, to = self.groups[group.index], (result.data_ptr(), scale, softcap)
        if attended.values_are_keys:
            assert sinks is None, "latents meet no second query"
            assert logits is None, "latents have no learned sinks"
            latent, rope = (planes[storage, name] for name in ("latent", "rope"))
            of_group.attend_latent(latent, rope, query_heads, _rows_at(held), *to)
        else:
            of_group.attend(
                planes[storage, "k"],
                planes[storage, "v"],
                query_heads,
                _rows_at(held),
                _NO_ROWS if sinks is None else _rows_at(sinks),
                0 if logits is None else logits.data_ptr(),
                *to,
            )
        return result if result.dtype == query.dtype else result.to(query.dtype)


def _readable(rows: Tensor) -> Tensor:
    """fp32 or bf16 with a row's elements in a run."""
    if rows.dtype not in (torch.float32, torch.bfloat16):
        rows = rows.float()
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _rows_at(held: Tensor) -> tuple[int, bool, int, int]:
    token, head, _ = held.stride()
    return held.data_ptr(), held.dtype == torch.bfloat16, token, head


def native_plane(
    module: ModuleType,
    layout: CacheLayout,
    group: int,
    layer: int,
    name: str,
    centre: Centre | None,
) -> Any:
    """One layer's plane as C++ knows it; whoever keeps it keeps the centre's tensors."""
    placed = {p.field.name: p for p in layout.blocks[group].fields_of(layer, name)}
    known = {field for names in _FIELDS for field in names}
    assert placed.keys() <= known, f"C++ knows no fields {placed.keys() - known}"
    fields = [
        next((field_strides(placed[n]) for n in names if n in placed), _NOTHING)
        for names in _FIELDS
    ]
    [codec] = {p.codec for p in placed.values()}
    [plane] = [p for p in layout.blocks[group].group.planes if p.name == name]
    rows, table, reach_tokens = 0, 0, 0
    if centre is not None:
        assert centre.rows.is_contiguous()
        assert centre.table.is_contiguous()
        rows, table = centre.rows.data_ptr(), centre.table.data_ptr()
        reach_tokens = len(centre.table) * module.TILE_TOKENS
    bounds = [
        field_strides(p)[:2]
        for p in layout.blocks[group].fields
        if name == "k" and (p.layer, p.plane) == (layer, BOUNDS)
    ]
    return module.Plane(
        codec=codec,
        heads=plane.heads,
        dim=plane.dim,
        fields=fields,
        centre_rows=rows,
        centre_table=table,
        centre_tokens=reach_tokens,
        bounds=bounds[0] if bounds else (-1, 0),
    )
