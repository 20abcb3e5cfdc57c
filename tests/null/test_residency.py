"""Liveness rules against brute force over tokens."""

from hypothesis import given
from hypothesis import strategies as st

from holdover.spec.residency import (
    Chunk,
    Full,
    Residency,
    Window,
    live_tokens,
    peak_blocks,
    step_blocks,
)

residencies = st.one_of(
    st.builds(Full),
    st.builds(Window, st.integers(1, 30), st.sampled_from([0, 0, 1, 3, 7])),
    st.builds(Chunk, st.integers(1, 30)),
)


def readable(residency: Residency, position: int) -> set[int]:
    """The definition in words of each rule, one key at a time."""
    match residency:
        case Full():
            return set(range(position + 1))
        case Window(window, sinks):
            return {k for k in range(position + 1) if k < sinks or position - k < window}
        case Chunk(chunk):
            return {k for k in range(position + 1) if k // chunk == position // chunk}
    raise AssertionError(residency)


@given(residencies, st.integers(0, 80), st.integers(1, 20), st.integers(1, 9))
def test_a_step_holds_the_blocks_its_queries_read_and_no_dead_ones(residency, start, n, bt):
    blocks = step_blocks(residency, start, start + n, bt)
    read = set().union(*(readable(residency, p) for p in range(start, start + n)))
    wanted = {key // bt for key in read}
    held = {b for b in range(0, start + n) if b in blocks}
    # Between what the first and the last query read nothing is let go within one step.
    assert wanted <= held
    assert len(held) == blocks.n_blocks
    first = min(readable(residency, start) - set(range(residency.sink_tokens)), default=start)
    assert all(b * bt < residency.sink_tokens or (b + 1) * bt > first for b in held)


@given(residencies, st.integers(0, 80), st.integers(1, 9))
def test_live_tokens_are_those_a_later_query_reads(residency, n_tokens, bt):
    later = set().union(*(readable(residency, p) for p in range(n_tokens, n_tokens + 40)))
    live = later & set(range(n_tokens))
    assert live_tokens(residency, n_tokens) == len(live)
    between_steps = step_blocks(residency, n_tokens, n_tokens, bt)
    assert {key // bt for key in live} <= {b for b in range(n_tokens + 1) if b in between_steps}


@given(residencies, st.integers(1, 60), st.integers(1, 20), st.integers(1, 8))
def test_peak_is_the_maximum_over_every_schedule(residency, context, step, bt):
    brute = max(
        step_blocks(residency, start, start + n, bt).n_blocks
        for start in range(context)
        for n in range(1, min(step, context - start) + 1)
    )
    assert peak_blocks(residency, context, step, bt) == brute
