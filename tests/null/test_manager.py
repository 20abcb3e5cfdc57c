"""What a user of the cache relies on, case by case, on the null arena."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.manager import CacheManager
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Chunk, Full, Window

BLOCK_TOKENS = 4


def make_manager(residencies, n_sectors, block_tokens=BLOCK_TOKENS):
    layers = tuple(LayerSpec(attention_planes(1, 8), r) for r in residencies)
    layout = CacheLayout.of(CacheSpec.of(layers, block_tokens), uniform("bf16"))
    return CacheManager(layout, NullArena(n_sectors * layout.sector_bytes))


def run(manager, tokens, tenant="", step_tokens=5):
    """Compute a prompt to its end; returns the sequence and what was reused."""
    sequence = manager.admit(tokens, manager.match(tokens, tenant), 1, tenant)
    assert sequence is not None
    reused = sequence.n_tokens
    while sequence.n_tokens < len(tokens):
        n = min(step_tokens, len(tokens) - sequence.n_tokens)
        assert manager.reserve(sequence, n)
        manager.commit(sequence, tokens[sequence.n_tokens : sequence.n_tokens + n])
        manager.check()
    return sequence, reused


def test_the_next_turn_recomputes_nothing_of_the_last_one():
    manager = make_manager([Full()], 20)
    first = list(range(10))
    sequence, reused = run(manager, first)
    assert reused == 0
    manager.release(sequence)
    _, reused = run(manager, [*first, 77, 78])
    assert reused == 10  # two full blocks and a tail of two tokens


def test_the_same_prompt_again_computes_one_token():
    manager = make_manager([Full()], 20)
    prompt = list(range(12))
    manager.release(run(manager, prompt)[0])
    assert manager.match(prompt).n_tokens == 11


def test_a_prompt_that_differs_within_a_block_reuses_the_common_part_of_it():
    manager = make_manager([Full()], 20)
    manager.release(run(manager, [1, 2, 3, 4, 5, 6, 7, 8])[0])
    assert manager.match([1, 2, 3, 4, 5, 6, 99, 99, 99]).n_tokens == 6


@pytest.mark.parametrize("residencies", [[Window(6)], [Window(6), Window(6), Full()]])
def test_turn_two_of_a_windowed_chat_hits(residencies):
    manager = make_manager(residencies, 40)
    first = list(range(30))
    sequence, _ = run(manager, first)
    window_blocks = [b for b in manager.block_table(sequence, 0).tolist() if b >= 0]
    assert len(window_blocks) == 2  # positions 25..29 of blocks 6 and 7
    manager.release(sequence)
    _, reused = run(manager, [*first, 5, 5])
    assert reused == 30


def test_windowed_hit_needs_only_the_window():
    manager = make_manager([Window(4)], 6)
    first = list(range(40))
    sequence, _ = run(manager, first)
    manager.release(sequence)
    manager.evict(3)  # the oldest, far behind the window
    assert manager.match([*first, 1]).n_tokens == 40


def test_least_recently_used_goes_first():
    manager = make_manager([Full()], 4)
    a, b = [1] * 8, [2] * 8
    manager.release(run(manager, a)[0])
    manager.release(run(manager, b)[0])
    manager.release(run(manager, a)[0])  # a is now the more recent
    manager.release(run(manager, [3] * 4)[0])
    assert manager.match([*a, 9]).n_tokens >= 4
    assert manager.match([*b, 9]).n_tokens < 8
    assert manager.evicted_blocks > 0


def test_tenants_share_nothing():
    manager = make_manager([Full()], 20)
    prompt = list(range(12))
    manager.release(run(manager, prompt, tenant="a")[0])
    assert manager.match(prompt, "a").n_tokens == 11
    assert manager.match(prompt, "b").n_tokens == 0
    assert manager.match(prompt).n_tokens == 0


def test_no_room_leaves_everything_as_it_was():
    manager = make_manager([Full()], 3)
    sequence, _ = run(manager, [1] * 8)
    held = manager.held_bytes
    assert not manager.reserve(sequence, 5)
    assert manager.admit([2] * 8, manager.match([2] * 8), 8) is None
    assert manager.held_bytes == held
    manager.check()
    assert manager.reserve(sequence, 4)


def test_shared_blocks_are_held_once():
    manager = make_manager([Full()], 20)
    prompt = list(range(16))
    manager.release(run(manager, prompt)[0])
    run(manager, [*prompt, 1])
    held = manager.held_bytes
    run(manager, [*prompt, 2])
    block = manager.layout.blocks[0].nbytes
    assert manager.held_bytes == held + block


def test_unlike_groups_trade_sectors():
    """A group that needs a sector gets one although another has scattered its blocks."""
    manager = make_manager([Window(5), Window(5), Window(5), Full()], 8)
    assert manager.layout.blocks_per_sector == (1, 3)
    for start in range(12):
        manager.release(run(manager, list(range(start * 100, start * 100 + 9)))[0])
    long = list(range(5000, 5012))
    sequence, _ = run(manager, long)
    manager.release(sequence)
    assert manager.match([*long, 1]).n_tokens == 12


@settings(deadline=None, max_examples=60)
@given(
    residencies=st.lists(
        st.one_of(
            st.just(Full()),
            st.builds(Window, st.integers(1, 20), st.sampled_from([0, 3])),
            st.builds(Chunk, st.integers(1, 20)),
        ),
        min_size=1,
        max_size=3,
    ),
    context=st.integers(1, 50),
    step=st.integers(1, 12),
    block_tokens=st.sampled_from([1, 3, 4, 16]),
)
def test_planned_peak_is_what_the_manager_holds_at_its_peak(
    residencies, context, step, block_tokens
):
    """Exactly the planned sectors suffice, and some schedule needs every planned block."""
    residencies = [Full(), *residencies]  # so that nothing is skipped: Chunk(1) needs no past
    probe = make_manager(residencies, 1, block_tokens)
    peak = probe.layout.peak_blocks(context, step)
    n_sectors = probe.layout.sectors_for(peak)
    tokens = list(range(context))
    seen = [0] * len(peak)
    for first in range(0, context):  # every alignment of the steps, as a prefix hit would give
        manager = make_manager(residencies, n_sectors, block_tokens)
        sequence = manager.admit(tokens, manager.match(tokens), 1)
        while sequence.n_tokens < context:
            n = 1 if sequence.n_tokens < first else min(step, context - sequence.n_tokens)
            assert manager.reserve(sequence, n)
            for group in range(len(peak)):
                held = int((manager.block_table(sequence, group) >= 0).sum())
                seen[group] = max(seen[group], held)
            manager.commit(sequence, tokens[sequence.n_tokens : sequence.n_tokens + n])
        manager.check()
    assert tuple(seen) == peak


def test_a_promise_holds_room_without_holding_blocks():
    manager = make_manager([Full()], 10)
    tokens = list(range(24))
    first = manager.admit(tokens, manager.match(tokens), 4, promise=(6,))
    assert manager.held_bytes == manager.layout.held_bytes([1])
    other = list(range(100, 120))
    assert manager.admit(other, manager.match(other), 4, promise=(5,)) is None
    second = manager.admit(other, manager.match(other), 4, promise=(4,))
    for sequence, all_tokens in ((first, tokens), (second, other[:16])):
        while sequence.n_tokens < len(all_tokens):
            n = min(4, len(all_tokens) - sequence.n_tokens)
            assert manager.reserve(sequence, n)
            manager.commit(sequence, all_tokens[sequence.n_tokens : sequence.n_tokens + n])
    manager.check()


def test_a_long_windowed_prompt_is_promised_its_peak_and_not_its_length():
    manager = make_manager([Window(6)], 8)
    tokens = list(range(200))
    peak = manager.layout.peak_blocks(len(tokens), 4)
    first = manager.admit(tokens, manager.match(tokens), 4, promise=peak)
    other = list(range(1000, 1200))
    assert first is not None
    assert manager.admit(other, manager.match(other), 4, promise=peak) is not None
