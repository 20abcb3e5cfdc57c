"""Contiguous reservation, to compare with: each holds the longest context from start to end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.manager import CacheManager
from holdover.cache.sequence import SequenceCache
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Residency, Window
from holdover.units import ceil_div

BLOCK_TOKENS = 4


def layout_of(*residencies: Residency) -> CacheLayout:
    layers = tuple(LayerSpec(attention_planes(1, 8), r) for r in residencies)
    return CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform("bf16"))


def admitted(manager: CacheManager, n_prompt: int) -> list[SequenceCache]:
    """As many as find room, each with its own tenant."""
    found = []
    while True:
        tokens, tenant = list(range(n_prompt)), str(len(found))
        sequence = manager.admit(tokens, manager.match(tokens, tenant), 1, tenant)
        if sequence is None:
            return found
        found.append(sequence)
        manager.check()


@given(st.integers(1, 60), st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_it_holds_exactly_as_many_as_the_longest_fits_into_the_arena(
    n_sectors: int, whole_tokens: int, n_prompt: int
) -> None:
    layout = layout_of(Full())
    arena = NullArena(n_sectors * layout.sector_bytes)
    whole_bytes = ceil_div(whole_tokens, BLOCK_TOKENS) * layout.blocks[0].nbytes
    exact = arena.nbytes // whole_bytes  # floor(arena / max length)
    assert layout.whole_conversations(n_sectors, whole_tokens) == exact
    manager = CacheManager(layout, arena, whole_tokens=whole_tokens)
    held = admitted(manager, min(n_prompt, whole_tokens))
    assert len(held) == exact
    assert manager.held_bytes == exact * whole_bytes
    for sequence in held:
        assert manager.reserve(sequence, whole_tokens), "room that it has"


@pytest.mark.parametrize("residencies", [(Full(),), (Window(6), Full())])
def test_nothing_is_let_go_of_before_the_end(residencies: tuple[Residency, ...]) -> None:
    layout = layout_of(*residencies)
    manager = CacheManager(layout, NullArena(40 * layout.sector_bytes), whole_tokens=40)
    [first, *others] = admitted(manager, 3)
    for sequence in others:
        manager.release(sequence)
    before = manager.held_bytes
    for start in range(0, 40, 5):
        assert manager.reserve(first, 5)
        manager.commit(first, list(range(start, start + 5)))
        manager.check()
        assert manager.held_bytes == before
    manager.release(first)
    assert manager.held_bytes == 0
