"""Which tokens a step computes where several prompts wait: no first token waits for much more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.ends import PromptEnds
from holdover.cache.manager import CacheManager
from holdover.codecs.base import uniform
from holdover.engine.api import SamplingParams
from holdover.engine.budget import ENOUGH_TOKENS, StepBudget
from holdover.engine.scheduler import Scheduler
from holdover.engine.sequence import Sequence
from holdover.spec.ends import EndLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Full

STEP_TOKENS = 512
LAYOUT = CacheLayout.of(
    CacheSpec.of((LayerSpec(attention_planes(1, 8), Full()),), 8), uniform("fp32")
)


class Steps:
    """A scheduler with room for all, and a model that says nothing."""

    def __init__(self, step_tokens: int = STEP_TOKENS, max_sequences: int = 32) -> None:
        self.limits = Limits(max_sequences, step_tokens, 4096)
        ends = PromptEnds(EndLayout.of(8, max_sequences, 1), LAYOUT.spec.block_tokens)
        self.manager = CacheManager(LAYOUT, NullArena(4096 * LAYOUT.sector_bytes), ends=ends)
        self.scheduler = Scheduler(self.manager, self.limits)
        self.arrivals = 0

    def add(self, n_prompt: int, n_answer: int = 1, first: int | None = None) -> int:
        """Prompts with the same first token begin alike; returns the sequence's number."""
        number = self.arrivals
        self.arrivals += 1
        prompt = (1000 + (number if first is None else first), *range(1, n_prompt))
        params = SamplingParams(temperature=0)
        self.scheduler.add(Sequence.of(number, prompt, params, n_answer))
        return number

    def next(self) -> dict[int, int]:
        """Tokens of the next step by sequence; 0 for those whose prompt's end was known."""
        batch = self.scheduler.schedule()
        assert batch is not None
        self.scheduler.commit(batch)
        shares = [int(n) for n in np.diff(batch.query_start)]
        found = {s.arrival: n for s, n in zip(batch.sequences, shares, strict=True)}
        found |= {s.arrival: 0 for s in batch.sampled[len(batch.computed) :]}
        for sequence in batch.computed:
            if not sequence.n_generated:
                assert sequence.cache is not None
                self.manager.ends.keep(sequence.cache, np.zeros(1, np.float32))
        for sequence in batch.sampled:
            sequence.append(0)
            if sequence.n_generated == sequence.max_tokens:
                self.scheduler.finish(sequence)
        return found

    def all(self) -> list[dict[int, int]]:
        found = []
        while self.scheduler.has_work:
            found.append(self.next())
        return found


@pytest.mark.parametrize(
    ("prompts", "steps"),
    [
        ([200, 150, 300], [{0: 200}, {1: 150}, {2: 300}]),
        ([100, 100, 100], [{0: 100, 1: 28}, {1: 72, 2: 56}, {2: 44}]),
        ([40, 40, 40, 40], [{0: 40, 1: 40, 2: 40, 3: 8}, {3: 32}]),
        ([100, 900], [{0: 100, 1: 28}, {1: 512}, {1: 360}]),
        ([600, 100, 300], [{0: 512}, {0: 88, 1: 40}, {1: 60, 2: 68}, {2: 232}]),
        ([128, 1, 2], [{0: 128, 1: 1}, {2: 2}]),
        ([1200], [{0: 512}, {0: 512}, {0: 176}]),
    ],
)
def test_who_waits_behind_a_prompt_that_ends(
    prompts: list[int], steps: list[dict[int, int]]
) -> None:
    made = Steps()
    for n_prompt in prompts:
        made.add(n_prompt)
    assert made.all() == steps


def test_smaller_steps_are_as_they_were() -> None:
    made = Steps(step_tokens=100)
    for n_prompt in (60, 60, 60):
        made.add(n_prompt)
    assert made.all() == [{0: 60, 1: 40}, {1: 20, 2: 60}]


def test_who_decodes_gets_a_token_in_every_step_and_counts_for_nothing() -> None:
    made = Steps()
    decoding = [made.add(2, n_answer=20) for _ in range(20)]
    assert made.next() == dict.fromkeys(decoding, 2)
    single = dict.fromkeys(decoding, 1)
    first, second, third = made.add(100), made.add(600), made.add(200)
    assert made.next() == {**single, first: 100, second: 28}
    assert made.next() == {**single, second: 492}
    assert made.next() == {**single, second: 80, third: 48}
    assert made.next() == {**single, third: 152}


def test_who_runs_with_a_prompt_begun_goes_before_who_enters() -> None:
    made = Steps()
    first, second = made.add(100), made.add(250)
    assert made.next() == {first: 100, second: 28}
    third, fourth = made.add(50), made.add(50)
    assert made.next() == {second: 222}
    assert [s.arrival for s in made.scheduler.waiting] == [third, fourth]
    assert made.next() == {third: 50, fourth: 50}


def test_who_needs_no_prefill_enters_beside_a_prompt_that_ends() -> None:
    """Its whole prompt was computed before, or all but the last token of it."""
    made = Steps()
    made.add(40, first=0)
    made.all()
    for n_prompt, n_tokens in ((40, 0), (33, 1)):
        new, again, other = made.add(200), made.add(n_prompt, first=0), made.add(50)
        assert made.next() == {new: 200, again: n_tokens}
        assert made.next() == {other: 50}


def test_who_comes_behind_one_that_needs_no_prefill_leaves_its_step_short() -> None:
    made = Steps()
    made.add(40, first=0)
    made.all()
    again, long = made.add(40, first=0), made.add(600)
    assert made.next() == {again: 0, long: ENOUGH_TOKENS - 1}
    assert made.next() == {long: 600 - (ENOUGH_TOKENS - 1)}


def test_an_entrance_put_off_is_not_one_that_found_no_room() -> None:
    """It is tried in the next step, and not at the next block."""
    made = Steps()
    for _ in range(6):
        made.add(130, n_answer=40)
    entered = [set(made.next()) for _ in range(6)]
    assert entered == [set(range(n + 1)) for n in range(6)]


@given(
    pending=st.lists(st.integers(2, 700), min_size=1, max_size=8), step_tokens=st.integers(1, 600)
)
def test_steps_are_full_or_short_for_a_first_token(pending: list[int], step_tokens: int) -> None:
    while pending:
        budget = StepBudget(step_tokens)
        shares = [budget.take(n) for n in pending]
        total = sum(shares)
        assert shares[0] > 0, "the oldest did not advance"
        assert total == step_tokens - budget.n_left <= step_tokens
        ended = [i for i, n in enumerate(pending) if n == shares[i]]
        if ended:
            until_first = sum(shares[: ended[0] + 1])
            assert total <= max(until_first, ENOUGH_TOKENS)
        if total < sum(pending):
            most = min(step_tokens, ENOUGH_TOKENS) if ended else step_tokens
            assert total >= most
        pending = [n - share for n, share in zip(pending, shares, strict=True) if n > share]
