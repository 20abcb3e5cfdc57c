"""Blocks of one layout as blocks of another whose codecs keep less, and back: for tiers.

A row is decoded and encoded again; a field's bytes that are the same in both are copied. Keys that
one of the two stores less their centre (`_centre`) meet it on the way; where both do, it stays.
Bounds of sparse layers are those of the keys before.
Natively where both layouts are served so, else through the codecs: the bytes are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from holdover.codecs.base import centred_layers
from holdover.kernels import native
from holdover.kernels._centre import Centre, Centres
from holdover.kernels.native.availability import chosen_isa, require
from holdover.kernels.native.backend import native_plane
from holdover.kernels.reference.views import PlaneView
from holdover.spec.centres import CENTRE_TOKENS, TILE_CENTRES
from holdover.spec.layout import CacheLayout, PlacedField
from holdover.spec.sparse import BOUNDS


class _Route(Protocol):
    """One group's, one way."""

    def run(self, source: memoryview, target: memoryview, start_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class BlockTranscoder:
    """A `cache.tiers.base.Transcoder`; both lists are by group."""

    encoders: Sequence[_Route]
    decoders: Sequence[_Route]

    def encode(self, group: int, start_tokens: int, block: memoryview, to: memoryview) -> None:
        self.encoders[group].run(block, to, start_tokens)

    def decode(self, group: int, start_tokens: int, block: memoryview, to: memoryview) -> None:
        self.decoders[group].run(block, to, start_tokens)


def transcoder(
    layout: CacheLayout,
    centres: Centres,
    stored: CacheLayout,
    stored_centres: Centres,
    reference: bool = False,
) -> BlockTranscoder:
    """From `layout`, the arena's, to `stored`, of the same model; the centres are what each stores
    its keys less of."""
    own, other = _Form(layout, centres), _Form(stored, stored_centres)
    is_native = not reference and not (native.refusal(layout) or native.refusal(stored))
    route = _native_route if is_native else _reference_route
    groups = range(len(layout.blocks))
    return BlockTranscoder(
        [route(own, other, group) for group in groups],
        [route(other, own, group) for group in groups],
    )


def centres_of(layout: CacheLayout, centres: Centres) -> Centres:
    """Those of the layers whose keys this layout stores so."""
    return {layer: centres[layer] for layer in centred_layers(layout) if layer in centres}


@dataclass(frozen=True, slots=True)
class _Form:
    layout: CacheLayout
    centres: Centres

    def planes(self, group: int) -> list[tuple[int, str]]:
        of = self.layout.blocks[group].group
        return [(layer, plane.name) for layer in of.layers for plane in of.planes]

    def bounds(self, group: int) -> list[tuple[int, str]]:
        of = self.layout.blocks[group].group
        return [(layer, BOUNDS) for layer in of.layers if of.has_bounds(layer)]

    def placed(self, group: int, at: tuple[int, str]) -> tuple[PlacedField, ...]:
        return self.layout.blocks[group].fields_of(*at)

    def shape(self, group: int, plane: str) -> tuple[int, int]:
        """Heads and dims."""
        planes = self.layout.blocks[group].group.planes
        return next((p.heads, p.dim) for p in planes if p.name == plane)

    def centre(self, at: tuple[int, str]) -> Centre | None:
        return self.centres.get(at[0]) if at[1] == "k" else None


@dataclass(frozen=True, slots=True)
class _Copies:
    """Fields that are alike: (from, to, bytes)."""

    runs: Sequence[tuple[int, int, int]]

    def run(self, source: memoryview, target: memoryview) -> None:
        for start, to, n_bytes in self.runs:
            target[to : to + n_bytes] = source[start : start + n_bytes]


def _split(own: _Form, other: _Form, group: int) -> tuple[list[tuple[int, str]], _Copies]:
    """Planes whose rows change, and copies for the others and for bounds."""
    changed: list[tuple[int, str]] = []
    same = own.bounds(group)
    for at in own.planes(group):
        is_same = own.placed(group, at)[0].codec == other.placed(group, at)[0].codec
        (same if is_same else changed).append(at)
    pairs = [
        pair
        for at in same
        for pair in zip(own.placed(group, at), other.placed(group, at), strict=True)
    ]
    return changed, _Copies([(a.offset, b.offset, a.field.nbytes) for a, b in pairs])


# ---- natively -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NativeRoute:
    coder: Any
    copies: _Copies
    held: tuple[Centres, Centres]  # C++ has only their addresses

    def run(self, source: memoryview, target: memoryview, start_tokens: int) -> None:
        self.coder.run(_address(source), _address(target), start_tokens)
        self.copies.run(source, target)


def _native_route(own: _Form, other: _Form, group: int) -> _Route:
    module = require(own.layout)
    changed, copies = _split(own, other, group)
    pairs = [
        tuple(
            native_plane(module, form.layout, group, *at, form.centre(at)) for form in (own, other)
        )
        for at in changed
    ]
    coder = module.Transcoder(chosen_isa(module), pairs, own.layout.spec.block_tokens)
    return _NativeRoute(coder, copies, (own.centres, other.centres))


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


# ---- through the codecs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ReferenceRoute:
    own: _Form
    other: _Form
    group: int
    changed: Sequence[tuple[int, str]]
    copies: _Copies

    def run(self, source: memoryview, target: memoryview, start_tokens: int) -> None:
        here, there = (torch.frombuffer(view, dtype=torch.uint8) for view in (source, target))
        tokens = torch.arange(self.own.layout.spec.block_tokens)
        for layer, name in self.changed:
            plane = PlaneView.of(here, self.own.layout, self.group, layer, name)
            rows = torch.empty(1, len(tokens), *self.own.shape(self.group, name))
            plane.read(torch.zeros(1, dtype=torch.int64), rows)
            self._recentre((layer, name), rows[0], start_tokens + tokens)
            to = PlaneView.of(there, self.other.layout, self.group, layer, name)
            to.write(torch.zeros_like(tokens), tokens, rows[0])
        self.copies.run(source, target)

    def _recentre(self, at: tuple[int, str], rows: Tensor, positions: Tensor) -> None:
        """In place, as far as the centres reach."""
        old, new = self.own.centre(at), self.other.centre(at)
        if old is not None and new is None:
            n = _n_reached(old, positions)
            old.restore(rows[:n], positions[:n])
        if new is not None and old is None:
            n = _n_reached(new, positions)
            rows[:n] = new.stored(rows[:n], positions[:n])


def _n_reached(centre: Centre, positions: Tensor) -> int:
    return int((positions < len(centre.table) * TILE_CENTRES * CENTRE_TOKENS).sum())


def _reference_route(own: _Form, other: _Form, group: int) -> _Route:
    changed, copies = _split(own, other, group)
    return _ReferenceRoute(own, other, group, changed, copies)
