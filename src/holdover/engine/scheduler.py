"""Who computes which tokens in the next step.

    budget    | one token for each sequence that only needs one | prompts, oldest first, in chunks |
              of the younger ones only as much as lets the oldest one's first token come soon
    room      oldest first; where there is none the youngest running sequence is parked
    entrance  parked ones oldest first, then waiting ones in order; none after a step that parked
    lifts     who finds its prefix in a tier waits for it aside, and others enter in its stead

Promises: the oldest running sequence advances in every step, everyone admitted finishes, and no
step passes `step_tokens` or `max_sequences`. Talks to the cache through the manager only.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdover.cache.ends import HiddenStates
from holdover.cache.explain import Reuse
from holdover.cache.lifting import Lift
from holdover.cache.manager import CacheManager
from holdover.cache.sequence import SequenceCache
from holdover.engine.budget import StepBudget
from holdover.engine.sequence import Sequence, State
from holdover.spec.limits import Limits

_by_arrival = attrgetter("arrival")


class Entrant(Protocol):
    """What `enter` reads and sets: of a `Sequence`, or of what a simulation has in its place."""

    cache: SequenceCache | None
    lift: Lift | None
    cached_tokens: int | None
    reuse: Reuse | None

    @property
    def tokens(self) -> Sequence_[int]: ...

    @property
    def n_longest(self) -> int: ...

    @property
    def tenant(self) -> str: ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One step, flat: sequences[s] owns tokens [query_start[s], query_start[s + 1]).

    `logit_rows` are the rows of T whose token is the last known one of its sequence; the sequences
    that get a new token are `sampled`: these in the same order, then those whose prompt's end is
    `known`, of which this step computes nothing.
    """

    sequences: tuple[Sequence, ...]
    token_ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    query_start: NDArray[np.int32]  # [sequences + 1]
    context_tokens: NDArray[np.int32]  # [sequences], tokens of this step included
    logit_rows: NDArray[np.int64]  # [R]
    sampled: tuple[Sequence, ...]
    known: tuple[HiddenStates, ...] = ()

    @property
    def computed(self) -> tuple[Sequence, ...]:
        """Those of the sampled whose last token this step computes, by `logit_rows`."""
        return self.sampled[: len(self.logit_rows)]


class Scheduler:
    """Single-threaded; owns the sequences from `add` to `finish`."""

    def __init__(self, manager: CacheManager, limits: Limits) -> None:
        assert limits.step_tokens >= limits.max_sequences, "a step must hold a token of everyone"
        self._manager = manager
        self._limits = limits
        self._block_tokens = manager.layout.spec.block_tokens
        self.running: list[Sequence] = []  # all four by arrival
        self.parked: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.loading: list[Sequence] = []
        self.parked_total = 0
        self.prompt_tokens = 0  # of all sequences ever let in
        self.cached_tokens = 0  # those of them that were reused
        self.requantised_tokens = 0  # those of these that a tier had requantised
        self.kept_prompt_ends = 0  # let in, whose first token needs no prefill
        self._steps = 0
        # An entrance that failed is tried again when room may have come: matching is not free.
        self._entrance_closed = False

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.parked or self.waiting or self.loading)

    def add(self, sequence: Sequence) -> None:
        sequence.state = State.WAITING
        insort(self.waiting, sequence, key=_by_arrival)
        self._entrance_closed = False

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence in any state, done or cancelled; what it computed stays for reuse."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.PARKED:
            self.parked.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.LOADING:
            self.loading.remove(sequence)
        if sequence.lift is not None:
            self._manager.drop(sequence.lift)
            sequence.lift = None
        sequence.state = State.FINISHED
        self._let_go(sequence)
        self._entrance_closed = False

    def schedule(self) -> Batch | None:
        """The next step, with room reserved for all its tokens; None when there is nothing to do
        but to wait for tiers.

        Every batch must be followed by `commit`, or by `finish` of all its sequences.
        """
        self._steps += 1
        self._manager.poll()
        self._land()
        n_parked = self.parked_total
        budget = StepBudget(self._limits.step_tokens)
        work = self._reserve(budget.share(self.running))
        known: list[tuple[Sequence, HiddenStates]] = []
        if self.parked_total == n_parked:
            self._let_in(work, known, budget)
        any_work = bool(work or known)
        assert any_work or self.loading or not self.has_work, "work to do and no step to do it in"
        return batch_of(work, known) if any_work else None

    def commit(self, batch: Batch) -> None:
        """The rows of the batch are written; those of sequences finished since are left out."""
        starts = batch.query_start.tolist()
        token_ids = batch.token_ids.tolist()
        for sequence, start, stop in zip(batch.sequences, starts, starts[1:], strict=False):
            if sequence.state is not State.FINISHED:
                assert sequence.cache is not None
                self._manager.commit(sequence.cache, token_ids[start:stop])

    def _reserve(self, wanted: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """The part of `wanted` that finds room, at the cost of the youngest where there is none."""
        work = []
        for sequence, n_tokens in wanted:
            while sequence.state is State.RUNNING:
                assert sequence.cache is not None
                if self._manager.reserve(sequence.cache, n_tokens):
                    work.append((sequence, n_tokens))
                    break
                assert len(self.running) > 1, "the arena does not hold one sequence"
                self._park(self.running[-1])
        return work

    def _park(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._let_go(sequence)
        sequence.state = State.PARKED
        insort(self.parked, sequence, key=_by_arrival)
        self.parked_total += 1

    def _let_go(self, sequence: Sequence) -> None:
        if sequence.cache is not None:
            self._manager.release(sequence.cache)
            sequence.cache = None
            self._entrance_closed = False

    def _land(self) -> None:
        """Those whose prefix has come queue again, before those that arrived after them."""
        for sequence in [s for s in self.loading if s.lift is not None and s.lift.ended]:
            self.loading.remove(sequence)
            was_inside = sequence.cached_tokens is not None
            sequence.state = State.PARKED if was_inside else State.WAITING
            insort(self.parked if was_inside else self.waiting, sequence, key=_by_arrival)
            self._entrance_closed = False

    def _let_in(
        self,
        work: list[tuple[Sequence, int]],
        known: list[tuple[Sequence, HiddenStates]],
        budget: StepBudget,
    ) -> None:
        """Add parked and waiting sequences to the step's work while budget and room last, or to
        those whose prompt's end is known: they go on as if parked with an answer begun."""
        # Blocks also come free behind windows, with no one leaving: look again now and then.
        if self._entrance_closed and self.running and self._steps % self._block_tokens:
            return
        self._entrance_closed = False
        while budget.n_left and len(self.running) < self._limits.max_sequences:
            queue = self.parked or self.waiting
            if not queue:
                return
            sequence = queue[0]
            n_tokens = self._admit(sequence, budget)
            if sequence.lift is not None and not sequence.lift.ended:
                insort(self.loading, queue.pop(0), key=_by_arrival)
                sequence.state = State.LOADING
                continue
            if not n_tokens:
                self._entrance_closed = n_tokens is None
                return
            queue.pop(0)
            sequence.state = State.RUNNING
            insort(self.running, sequence, key=_by_arrival)
            end = self._find_end(sequence)
            if end is None:
                insort(work, (sequence, n_tokens), key=lambda item: item[0].arrival)
            else:
                known.append((sequence, end))

    def _admit(self, sequence: Sequence, budget: StepBudget) -> int | None:
        """As `enter`; counts who is let in."""
        is_new = sequence.cached_tokens is None
        alone = not (self.running or self.loading)
        n_step = enter(self._manager, self._limits, sequence, budget, alone)
        if n_step and is_new:
            self.prompt_tokens += sequence.n_prompt
            assert sequence.cache is not None
            self.cached_tokens += sequence.cache.n_tokens
            self.requantised_tokens += sequence.cache.requantised_tokens
        return n_step

    def _find_end(self, sequence: Sequence) -> HiddenStates | None:
        assert sequence.cache is not None
        if sequence.n_generated:
            return None
        end = self._manager.ends.find(sequence.cache, sequence.tokens)
        if end is not None:
            self.kept_prompt_ends += 1
            if sequence.reuse is not None:
                sequence.reuse = replace(sequence.reuse, prompt_end_was_kept=True)
        return end


def enter(
    manager: CacheManager, limits: Limits, sequence: Entrant, budget: StepBudget, alone: bool
) -> int | None:
    """Give a sequence its cache; returns its tokens in this step. It does not enter where these
    are 0, nor with None: there is no room, or a lift was begun for it.

    It must find room for its peak over all its known tokens and a block more, beside what those
    before it were let in for: less was too little when it was parked, so that no one is parked
    and resumed in turns. With nobody else running one step's room will do, which there always
    is.
    """
    tokens = sequence.tokens
    match = manager.match(tokens, sequence.tenant)
    n_known = min(len(tokens) + manager.layout.spec.block_tokens, sequence.n_longest)
    promise = manager.layout.peak_blocks(n_known, limits.step_tokens)
    if sequence.lift is None or not sequence.lift.ended:  # one attempt each time it queues
        sequence.lift = manager.lift(tokens, match, sequence.tenant, promise)
        if sequence.lift is not None and not sequence.lift.ended:
            return None
    n_step = budget.take(len(tokens) - match.n_tokens)
    if not n_step:
        return 0
    cache = manager.admit(
        tokens, match, n_step, sequence.tenant, promise=promise, owner=sequence.name
    )
    if cache is None and not alone:
        return None
    if cache is None:
        cache = manager.admit(tokens, match, n_step, sequence.tenant, owner=sequence.name)
        assert cache is not None, "the arena does not hold one sequence"
    sequence.cache = cache
    lift, sequence.lift = sequence.lift, None
    if sequence.cached_tokens is None:
        sequence.reuse = manager.explain(cache, tokens, lift)
        sequence.cached_tokens = cache.n_tokens
    return n_step


def batch_of(
    work: Collection[tuple[Sequence, int]],
    known: Collection[tuple[Sequence, HiddenStates]] = (),
) -> Batch:
    """A step that computes so many tokens of each sequence, and none of those whose prompt's end
    is known."""
    token_ids: list[int] = []
    positions: list[int] = []
    query_start = [0]
    context_tokens = []
    logit_rows = []
    sampled = []
    for sequence, n_tokens in work:
        start = sequence.n_computed
        stop = start + n_tokens
        token_ids += sequence.tokens[start:stop]
        positions += range(start, stop)
        query_start.append(len(token_ids))
        context_tokens.append(stop)
        if stop == len(sequence.tokens):
            logit_rows.append(len(token_ids) - 1)
            sampled.append(sequence)
    return Batch(
        tuple(sequence for sequence, _ in work),
        np.array(token_ids, dtype=np.int64),
        np.array(positions, dtype=np.int64),
        np.array(query_start, dtype=np.int32),
        np.array(context_tokens, dtype=np.int32),
        np.array(logit_rows, dtype=np.int64),
        (*sampled, *(sequence for sequence, _ in known)),
        tuple(end for _, end in known),
    )
