"""The replay's jumps against the engine's own scheduler, step by step: hits, parks, evictions.

Nothing is computed: the scheduler's batches are committed as they are, and each answer is as long
as its request says. Layouts with windows and chunks included.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.manager import CacheManager
from holdover.codecs.base import uniform
from holdover.engine.api import SamplingParams
from holdover.engine.scheduler import Scheduler
from holdover.engine.sequence import Sequence
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import Subject
from holdover.simulate.run import Setup, simulate
from holdover.simulate.served import prompt_tokens
from holdover.simulate.trace import Request, Trace
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Chunk, Full, Residency, Window

BLOCK_TOKENS = (4, 48)  # with the larger ones, some steps end short behind a prompt that ends
LAYOUTS: dict[str, tuple[Residency, ...]] = {
    "full": (Full(),),
    "window": (Window(10, sink_tokens=2),),
    "both": (Full(), Window(7)),
    "chunk": (Full(), Chunk(12)),
}


def layout_of(name: str, block_tokens: int) -> CacheLayout:
    planes = attention_planes(1, 64)
    layers = tuple(LayerSpec(planes, residency) for residency in LAYOUTS[name])
    return CacheLayout.of(CacheSpec.of(layers, block_tokens), uniform("bf16"))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts that go on from each other; all come at once."""
    block_tokens = draw(st.sampled_from(BLOCK_TOKENS))
    histories: list[list[int]] = [[1]]
    requests = []
    for index in range(draw(st.integers(1, 14))):
        history = [
            *draw(st.sampled_from(histories)),
            *draw(st.lists(st.integers(2, 4), max_size=5)),
        ]
        histories.append(history)
        n_prompt = len(history) * block_tokens - draw(st.integers(0, block_tokens - 1))
        blocks = np.array(history, np.int32)
        n_output = draw(st.integers(1, 30))
        requests.append(Request(n_prompt, n_output, blocks, index, 0.0))
    return Trace("made", "made", block_tokens, tuple(requests), len(requests), False)


def scheduled(
    trace: Trace, layout: CacheLayout, n_sectors: int, limits: Limits
) -> tuple[list[int | None], int, int]:
    """Cached tokens of each request, evictions and parks, by the engine's scheduler."""
    manager = CacheManager(layout, NullArena(n_sectors * layout.sector_bytes))
    scheduler = Scheduler(manager, limits)
    sequences: dict[int, Sequence] = {}
    for index, request in enumerate(trace.requests):
        if request.prompt_tokens + request.output_tokens > limits.max_context_tokens:
            continue
        prompt = tuple(int(t) for t in prompt_tokens(request, layout.spec.block_tokens, -1 - index))
        params = SamplingParams(temperature=0)
        sequences[index] = Sequence.of(index, prompt, params, request.output_tokens)
        scheduler.add(sequences[index])
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.commit(batch)
        for sequence in batch.sampled:
            sequence.append(-1 - sequence.arrival)
            if sequence.n_generated == sequence.max_tokens:
                scheduler.finish(sequence)
    manager.check()
    found = [
        sequences[i].cached_tokens if i in sequences else None for i in range(len(trace.requests))
    ]
    return found, manager.evicted_blocks, scheduler.parked_total


def resumed() -> Trace:
    """One is parked, and computes again what lies before blocks of its own that are cached."""
    short, long = np.array([1], np.int32), np.array([1, 2, 2, 2, 2, 2], np.int32)
    asked = [(short, 1), (long, 1), (short, 18), (long, 17), *[(short, 1)] * 5]
    requests = [Request(4 * len(b), n, b, i, 0.0) for i, (b, n) in enumerate(asked)]
    return Trace("made", "made", 4, tuple(requests), len(requests), False)


@pytest.mark.parametrize("name", LAYOUTS)
@example(trace=resumed(), sequences=2, step=6, extra=13)
@settings(max_examples=60, deadline=None)
@given(
    trace=traces(), sequences=st.integers(1, 6), step=st.integers(6, 40), extra=st.integers(0, 30)
)
def test_jumps_are_the_schedulers_steps(
    name: str, trace: Trace, sequences: int, step: int, extra: int
) -> None:
    assert trace.block_tokens is not None
    layout = layout_of(name, trace.block_tokens)
    step = step * trace.block_tokens // min(BLOCK_TOKENS)
    shortest = min(r.prompt_tokens + r.output_tokens for r in trace.requests)
    n_sectors = layout.sectors_for(layout.peak_blocks(shortest, step)) + extra
    subject = Subject("made", "made", "bf16", layout, None, None)
    setup = Setup(
        subject, StepCosts(1e3, 0.01, 1e9, ()), LinkCosts({}), max_sequences=sequences,
        step_tokens=step,
    )  # fmt: skip
    arena_bytes = n_sectors * layout.sector_bytes
    outcome = simulate(trace, setup, arena_bytes, "", lambda done, total: None)
    limits = Limits(sequences, step, outcome.context_tokens)
    expected = scheduled(trace, layout, n_sectors, limits)
    assert (list(outcome.cached_tokens), outcome.evicted_blocks, outcome.parked) == expected
