"""The scheduler on the real manager with memory switched off, driven by a scripted model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.costs import Costs
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.codecs.base import uniform
from holdover.engine.api import SamplingParams
from holdover.engine.runner import attention_batch
from holdover.engine.scheduler import Batch, Scheduler
from holdover.engine.sequence import Sequence, State
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Chunk, Full, Residency, Window

from .machine_tier import MachineTier

MODELS: dict[str, tuple[Residency, ...]] = {
    "full": (Full(), Full()),
    "window": (Window(7), Full(), Window(7)),
    "only windows": (Window(5), Window(9)),
    "sinks and chunks": (Window(6, sink_tokens=3), Chunk(8), Full()),
}


def layout_of(model: str, block_tokens: int = 4) -> CacheLayout:
    layers = tuple(
        LayerSpec(attention_planes(1 + i % 2, 8), residency)
        for i, residency in enumerate(MODELS[model])
    )
    return CacheLayout.of(CacheSpec.of(layers, block_tokens), uniform("fp32"))


@dataclass
class Machine:
    """Scheduler, manager and a model that answers by rule; everything is checked at every step."""

    layout: CacheLayout
    limits: Limits
    n_sectors: int
    tier: MachineTier | None = None
    steps: int = 0
    finished: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        arena = NullArena(self.n_sectors * self.layout.sector_bytes)
        mover = Mover(self.layout, [self.tier], Costs()) if self.tier is not None else None
        self.manager = CacheManager(self.layout, arena, mover=mover)
        self.scheduler = Scheduler(self.manager, self.limits)

    @classmethod
    def tight(
        cls, model: str, limits: Limits, spare_sectors: int, tier: MachineTier | None = None,
        block_tokens: int = 4,
    ) -> Machine:  # fmt: skip
        """Just room for the longest sequence alone, and a few sectors more."""
        layout = layout_of(model, block_tokens)
        blocks = layout.peak_blocks(limits.max_context_tokens, limits.step_tokens)
        return cls(layout, limits, layout.sectors_for(blocks) + spare_sectors, tier)

    def step(self) -> Batch | None:
        scheduler = self.scheduler
        oldest = scheduler.running[0] if scheduler.running else None
        before = oldest.n_computed if oldest else 0
        n_parked = scheduler.parked_total
        n_inside = len(scheduler.running) + len(scheduler.parked) + len(scheduler.loading)
        batch = scheduler.schedule()
        self.manager.check()
        if batch is None:
            return None
        self.steps += 1
        self.check_batch(batch)
        if scheduler.parked_total > n_parked:
            n_now = len(scheduler.running) + len(scheduler.parked) + len(scheduler.loading)
            assert n_now <= n_inside, "someone was let in by a step that parked"
        scheduler.commit(batch)
        self.manager.check()
        for sequence in batch.sampled:
            assert sequence.n_pending == 0
            sequence.append((7 * len(sequence.tokens) + sum(sequence.tokens[-2:])) % 3)
            if sequence.n_generated == sequence.max_tokens:
                scheduler.finish(sequence)
                self.finished.append(sequence)
        if oldest is not None and oldest.state is State.RUNNING:
            assert oldest.n_computed > before, "the oldest did not advance"
        self.manager.check()
        return batch

    def check_batch(self, batch: Batch) -> None:
        assert 1 <= len(batch.token_ids) <= self.limits.step_tokens
        assert len(batch.sequences) <= len(self.scheduler.running) <= self.limits.max_sequences
        tables = attention_batch(batch, self.manager).block_tables
        for s, sequence in enumerate(batch.sequences):
            start, stop = batch.query_start[s : s + 2]
            assert stop > start, "a sequence without tokens"
            positions = batch.positions[start:stop]
            first = sequence.n_computed
            assert positions.tolist() == list(range(first, first + stop - start))
            assert batch.token_ids[start:stop].tolist() == [sequence.tokens[p] for p in positions]
            assert batch.context_tokens[s] == positions[-1] + 1
            assert (stop - 1 in batch.logit_rows) == (positions[-1] + 1 == len(sequence.tokens))
            for group, table in zip(self.layout.spec.groups, tables, strict=True):
                readable = np.arange(group.residency.first_visible(first), positions[-1] + 1)
                sinks = np.arange(min(group.residency.sink_tokens, positions[-1] + 1))
                for position in (*readable, *sinks):
                    assert table[s, position // self.layout.spec.block_tokens] >= 0

    def run_out(self) -> None:
        while self.step() is not None or self.scheduler.loading:
            if self.tier is not None:
                self.tier.end_loads(1)


def sequence_of(arrival: int, prompt: tuple[int, ...], max_tokens: int) -> Sequence:
    return Sequence.of(arrival, prompt, SamplingParams(temperature=0), max_tokens)


requests = st.lists(
    st.tuples(
        st.integers(0, 6),  # steps before the next one comes
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 24),  # tokens of the answer
        st.integers(0, 3),  # which of a few prompts, so that prefixes are shared
        st.one_of(st.none(), st.none(), st.integers(0, 30)),  # cancelled after that many steps
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=120, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    asked=requests,
    step_tokens=st.integers(4, 24),
    max_sequences=st.integers(1, 4),
    spare_sectors=st.integers(0, 3),
    answers=st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=9)),
    scale=st.sampled_from((1, 16)),
)
def test_everyone_finishes_and_nothing_stays(
    model: str,
    asked: list[tuple[int, int, int, int, int | None]],
    step_tokens: int,
    max_sequences: int,
    spare_sectors: int,
    answers: list[tuple[int, bool]] | None,
    scale: int,
) -> None:
    """`answers`: how many loads end before a step, and whether they fail; None: no tier. What is
    long makes steps that end short behind a prompt that ends."""
    limits = Limits(max_sequences, step_tokens * scale, max_context_tokens=64 * scale)
    tier = MachineTier() if answers is not None else None
    machine = Machine.tight(model, limits, spare_sectors, tier, block_tokens=4 * scale)
    cancelled: dict[int, list[Sequence]] = {}
    everyone = []
    now = 0
    for arrival, (pause, n_prompt, n_answer, kind, cancel) in enumerate(asked):
        prompt = tuple((kind * i * i + i // 5) % 3 for i in range(n_prompt * scale))
        sequence = sequence_of(arrival, prompt, n_answer)
        everyone.append(sequence)
        if cancel is not None:
            cancelled.setdefault(now + cancel, []).append(sequence)
        machine.scheduler.add(sequence)
        for _ in range(pause):
            if tier is not None and answers:
                tier.end_loads(*answers.pop())
            machine.step()
            for gone in cancelled.pop(now, []):
                if gone.state is not State.FINISHED:
                    machine.scheduler.finish(gone)
                    machine.manager.check()
            now += 1
    machine.run_out()
    for sequence in everyone:
        assert sequence.state is State.FINISHED
    left_early = {s for group in cancelled.values() for s in group}
    assert len(machine.finished) >= len(everyone) - sum(a[4] is not None for a in asked)
    assert left_early <= set(machine.finished), "one that nobody cancelled in time did not finish"
    # Each step advances the oldest one by a token that it never loses: no step is spent in vain.
    assert machine.steps <= sum(sequence.n_longest for sequence in everyone)
    assert machine.manager.held_bytes == 0
    assert machine.manager.logical_bytes == 0


def test_single_tokens_come_before_prompts_and_older_prompts_before_younger() -> None:
    machine = Machine(layout_of("full"), Limits(4, 10, 64), n_sectors=64)
    decoding = sequence_of(0, (1, 2), 8)
    machine.scheduler.add(decoding)
    machine.step()
    for arrival in (1, 2):
        machine.scheduler.add(sequence_of(arrival, tuple(range(arrival, arrival + 15)), 2))
    shares = []
    for _ in range(4):
        batch = machine.step()
        assert batch is not None
        shares.append(np.diff(batch.query_start).tolist())
    assert shares == [[1, 9], [1, 6, 3], [1, 1, 8], [1, 4]]


def test_pressure_parks_the_youngest_once_and_it_finishes_with_its_tokens() -> None:
    """Two that fit at first and not at last: no ping-pong, and nothing generated is lost."""
    limits = Limits(2, 64, 48)
    layout = layout_of("full")
    n_sectors = layout.sectors_for([16, 16])
    machine = Machine(layout, limits, n_sectors)
    assert layout.sectors_for([12, 12]) <= n_sectors < layout.sectors_for([24, 24])
    old, young = sequence_of(0, (1,) * 8, 40), sequence_of(1, (2,) * 8, 40)
    for sequence in (old, young):
        machine.scheduler.add(sequence)
    tokens_when_parked = None
    while young.state is not State.FINISHED:
        machine.step()
        if young.state is State.PARKED:
            tokens_when_parked = tokens_when_parked or list(young.tokens)
            assert old.state is not State.PARKED, "two parked and nobody runs"
    assert tokens_when_parked is not None
    assert young.tokens[: len(tokens_when_parked)] == tokens_when_parked
    assert machine.scheduler.parked_total == 1
    assert machine.finished == [old, young]


def test_parked_ones_come_back_before_waiting_ones() -> None:
    machine = Machine(layout_of("full"), Limits(3, 64, 48), layout_of("full").sectors_for([16, 16]))
    order: list[int] = []
    for arrival in range(6):
        machine.scheduler.add(sequence_of(arrival, (arrival,) * 8, 36))
    while machine.scheduler.has_work:
        parked = list(machine.scheduler.parked)
        waiting = list(machine.scheduler.waiting)
        machine.step()
        if len(machine.scheduler.waiting) < len(waiting):
            assert not [s for s in parked if s.state is State.PARKED]
        order = [s.arrival for s in machine.finished]
    assert machine.scheduler.parked_total > 0
    assert order == sorted(order)


def test_cached_tokens_count_the_first_admission_only() -> None:
    machine = Machine(layout_of("full"), Limits(2, 64, 64), n_sectors=64)
    first = sequence_of(0, tuple(range(21)), 1)
    machine.scheduler.add(first)
    machine.run_out()
    second = sequence_of(1, (*range(21), 99, 98), 4)
    machine.scheduler.add(second)
    machine.step()
    machine.scheduler._park(second)
    machine.run_out()
    assert first.usage().cached_tokens == 0
    assert second.usage().cached_tokens == 21  # five blocks and one token of the sixth
    assert second.usage().completion_tokens == 4


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_sequence_alone_reaches_the_promised_length(model: str) -> None:
    """In an arena made for exactly one, whatever was cached before, with hits of every length."""
    limits = Limits(1, 8, 40)
    machine = Machine.tight(model, limits, spare_sectors=0)
    prompt = tuple(i * i % 5 for i in range(30))
    for arrival, n_prompt in enumerate((30, 3, 17, 21, 30, 22, 9, 30)):
        machine.scheduler.add(sequence_of(arrival, prompt[:n_prompt], 41 - n_prompt))
        machine.run_out()
    assert machine.scheduler.parked_total == 0
    assert len(machine.finished) == 8


def on_a_tier(n_sectors: int, limits: Limits, prompt: tuple[int, ...]) -> Machine:
    """A machine whose tier holds `prompt`, and whose arena holds nothing."""
    machine = Machine(layout_of("full"), limits, n_sectors, MachineTier())
    machine.scheduler.add(sequence_of(0, prompt, 2))
    machine.run_out()
    machine.manager.poll()
    machine.manager.evict()
    return machine


def test_who_waits_for_a_tier_lets_others_in_and_computes_only_the_rest() -> None:
    machine = on_a_tier(64, Limits(4, 32, 64), tuple(range(22)))
    assert machine.tier is not None
    waits, goes_on = sequence_of(1, (*range(22), 7, 7), 2), sequence_of(2, (50,) * 9, 3)
    machine.scheduler.add(waits)
    machine.scheduler.add(goes_on)
    batch = machine.step()
    assert batch is not None
    assert [s.arrival for s in batch.sequences] == [2]
    assert waits.state is State.LOADING
    machine.tier.end_loads(99)
    batch = machine.step()
    assert batch is not None
    assert [s.arrival for s in batch.sequences] == [1, 2]
    assert batch.positions.tolist()[:2] == [22, 23]  # five blocks, and two tokens of a tail
    assert waits.usage().cached_tokens == 22


def test_a_load_that_fails_is_computed() -> None:
    machine = on_a_tier(64, Limits(4, 32, 64), tuple(range(22)))
    assert machine.tier is not None
    sequence = sequence_of(1, (*range(22), 7, 7), 2)
    machine.scheduler.add(sequence)
    machine.step()
    machine.tier.end_loads(4)  # two blocks of each group
    machine.tier.end_loads(1, fails=True)
    machine.tier.end_loads(99)
    machine.tier.takes_loads = False
    machine.run_out()
    assert sequence.state is State.FINISHED
    assert sequence.usage().cached_tokens == 8  # the two blocks before the one that failed


def test_who_computes_takes_the_room_of_who_waits() -> None:
    """The lift is dropped, not its sequence; both finish."""
    layout = layout_of("full")
    machine = on_a_tier(layout.sectors_for([16, 16]), Limits(2, 32, 60), tuple(range(30)))
    assert machine.tier is not None
    waits, computes = sequence_of(1, (*range(30), 7), 2), sequence_of(2, (50,) * 8, 50)
    machine.scheduler.add(waits)
    machine.scheduler.add(computes)
    machine.step()
    lift = waits.lift
    assert lift is not None
    while computes.state is not State.FINISHED:
        machine.step()
    assert lift.problem == "its room was wanted"
    machine.run_out()
    assert waits in machine.finished


def test_a_cancelled_one_gives_its_room_back_at_once() -> None:
    machine = on_a_tier(64, Limits(4, 32, 64), tuple(range(22)))
    assert machine.tier is not None
    sequence = sequence_of(1, (*range(22), 7, 7), 2)
    machine.scheduler.add(sequence)
    machine.step()
    assert machine.manager.held_bytes > 0
    machine.scheduler.finish(sequence)
    assert machine.manager.held_bytes == 0
    machine.tier.end_loads(99)  # answers that nobody waits for
    machine.run_out()
    machine.manager.poll()
    machine.manager.check()


def test_what_would_take_longer_to_load_is_computed() -> None:
    machine = on_a_tier(64, Limits(4, 32, 64), tuple(range(22)))
    assert machine.tier is not None
    machine.manager.observe(n_tokens=100, step_s=0.1)
    for rate, loads in ((1e3, False), (1e9, True)):  # 1e3: some 7 s for what takes 22 ms
        machine.tier.rate = rate
        sequence = sequence_of(int(rate), (*range(22), int(rate) % 7, 7), 2)
        machine.scheduler.add(sequence)
        machine.step()
        assert (sequence.state is State.LOADING) == loads
        machine.run_out()
        machine.manager.poll()
        machine.manager.evict()
