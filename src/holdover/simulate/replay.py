"""One trace through the engine's manager and its rules of entrance, in simulated time.

    step       the same tokens that the engine's scheduler would compute: one for each sequence that
               decodes, the rest of the step's budget for prompts, oldest first, then who waits
    jump       steps that differ in nothing but the position of their tokens are taken at once

Who decodes is touched only when its next block is due, when it ends, or when it is parked, so a
request costs the same however long its answer is. What the manager is asked, and in which order, is
what it would be asked step by step.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from holdover.cache.costs import MEASURED_TOKENS
from holdover.cache.manager import CacheManager
from holdover.cache.mover import REFUSED_REST_S, Mover
from holdover.engine.budget import StepBudget
from holdover.engine.scheduler import enter
from holdover.engine.sequence import State
from holdover.simulate.agenda import Agenda
from holdover.simulate.costs import StepCosts
from holdover.simulate.reads import Reads
from holdover.simulate.served import Served, Turns, filled
from holdover.simulate.tiers import Clock, SimulatedTiers
from holdover.spec.limits import Limits

_MOST_STEPS = 4096  # taken at once
_by_arrival = attrgetter("arrival")


def _arrival_of(item: tuple[Served, int]) -> int:
    return item[0].arrival


Finished = Callable[[Served], None]


class Replay:
    """`finished` is told of every request that has ended, and of those that can never fit."""

    def __init__(
        self,
        manager: CacheManager,
        limits: Limits,
        costs: StepCosts,
        clock: Clock,
        mover: Mover | None,
        tiers: SimulatedTiers,
        turns: Turns,
        finished: Finished,
    ) -> None:
        self._manager = manager
        self._limits = limits
        self._costs = costs
        self._clock = clock
        self._mover = mover
        self._tiers = tiers
        self._turns = turns
        self._finished = finished
        self._block_tokens = manager.layout.spec.block_tokens
        self._keeps_all = manager.layout.spec.keeps_all
        self._reads = Reads(manager.layout)
        self._running: list[Served] = []  # all by arrival
        self._prompting: list[Served] = []  # those of them that do not decode
        self._parked: list[Served] = []
        self._waiting: list[Served] = []
        self._loading: list[Served] = []
        # At a step's end: a block is full, or dies, or it gets its last token.
        self._looks = Agenda()
        self._dues = Agenda()  # at a step's begin: it needs a new block
        self._steps = 0
        self._entrance_closed = False
        self.parked_total = 0
        self.busy_s = 0.0
        self.most_running = 0
        self.running_s = 0.0  # sequences x seconds

    def run(self) -> None:
        if self._mover is not None:
            n = min(MEASURED_TOKENS, self._limits.step_tokens)
            self._manager.observe(n, self._costs.fixed_s(n))
        while True:
            self._take_arrivals()
            if self._running or self._parked or self._waiting:
                self._step()
            elif not self._pass_time():
                return

    # ---- between steps ------------------------------------------------------------------------

    def _take_arrivals(self) -> None:
        for served in self._turns.arrived(self._clock.now_s):
            if served.n_prompt + served.max_tokens > self._limits.max_context_tokens:
                served.is_refused = True
                self._end(served)
                continue
            insort(self._waiting, served, key=_by_arrival)
            self._entrance_closed = False

    def _pass_time(self) -> bool:
        """Nothing is computed until a load ends or a request comes; False when neither will."""
        next_s = min(self._turns.next_s, self._next_load_s())
        if math.isinf(next_s):
            return False
        self._store_until(next_s, REFUSED_REST_S)
        self._clock.now_s = max(self._clock.now_s, next_s)
        if self._loading:
            self._manager.poll()
            self._land()
        return True

    def _next_load_s(self) -> float:
        """When the first of those who wait for tiers can go on."""
        return min(
            (
                s.load_end_s if s.lift and not s.lift.ended else self._clock.now_s
                for s in self._loading
            ),
            default=math.inf,
        )

    def _store_until(self, end_s: float, rest_s: float) -> None:
        """Tiers are given what waits for them, as often as the engine would poll in that time."""
        mover = self._mover
        while mover is not None and mover.waiting_blocks and self._clock.now_s + rest_s < end_s:
            n_waiting = mover.waiting_blocks
            self._clock.now_s += rest_s
            self._manager.poll()
            if mover.waiting_blocks == n_waiting:  # a busy tier is left alone for a while
                rest_s = max(rest_s, REFUSED_REST_S)

    # ---- one step, or many alike ----------------------------------------------------------------

    def _step(self) -> None:
        self._steps += 1
        self._manager.poll()
        self._land()
        n_parked = self.parked_total
        n_decoding = len(self._running) - len(self._prompting)
        budget = StepBudget(self._limits.step_tokens - n_decoding)
        work = self._reserve(budget.share(self._prompting))
        n_before = len(self._running)
        has_parked = self.parked_total > n_parked
        if not has_parked:
            self._let_in(work, budget)
        self.most_running = max(self.most_running, len(self._running))
        if not self._running:
            if not self._pass_time():
                raise AssertionError("there is work and no step to do it in")
            return
        for served, n_tokens in work:
            self._reads.set(served, served.n_computed + n_tokens, n_tokens)
        n_decoding = len(self._running) - len(self._prompting)
        n_prompt_tokens = sum(n_tokens for _, n_tokens in work)
        one_s = self._costs.fixed_s(n_prompt_tokens) + self._read_s()
        alone = work[0] if len(work) == 1 and len(self._running) == n_before else None
        n_steps = 1  # after one that parked, others may enter
        if not has_parked:
            n_steps = self._steps_alike(work, alone, n_decoding, n_prompt_tokens)
        n_uncommitted = 1
        if alone is not None and n_steps > 1:
            n_steps, n_uncommitted = self._go_ahead(*alone, n_steps)
        self._pass_steps(n_steps, one_s, n_prompt_tokens)
        self._manager.observe(n_decoding + n_prompt_tokens, one_s)
        self._end_step(work, n_uncommitted)

    def _reserve(self, wanted: list[tuple[Served, int]]) -> list[tuple[Served, int]]:
        """The part of `wanted` that finds room beside the next blocks of those who decode."""
        due = [(served, 0) for served in self._dues.take(self._steps)]
        if due:
            wanted = sorted([*wanted, *due], key=_arrival_of)
        work = []
        for served, n_tokens in wanted:
            if served.state is State.RUNNING and not n_tokens:
                self._commit_answer(served, self._steps - 1)
            while served.state is State.RUNNING:
                assert served.cache is not None
                if self._manager.reserve(served.cache, n_tokens or 1):
                    break
                assert len(self._running) > 1, "the arena does not hold one sequence"
                self._park(self._running[-1])
            if served.state is not State.RUNNING:
                continue
            if n_tokens:
                work.append((served, n_tokens))
            else:
                self._await_block(served)
        return work

    def _let_in(self, work: list[tuple[Served, int]], budget: StepBudget) -> None:
        """As the scheduler does, parked ones first."""
        if self._entrance_closed and self._running and self._steps % self._block_tokens:
            return
        self._entrance_closed = False
        while budget.n_left and len(self._running) < self._limits.max_sequences:
            queue = self._parked or self._waiting
            if not queue:
                return
            served = queue[0]
            alone = not (self._running or self._loading)
            n_tokens = enter(self._manager, self._limits, served, budget, alone)
            if served.lift is not None and not served.lift.ended:
                insort(self._loading, queue.pop(0), key=_by_arrival)
                served.state = State.LOADING
                places = {place for place, _ in served.lift.targets}
                served.load_end_s = max(self._tiers[p].loads.link.free_s for p in places)
                continue
            if not n_tokens:
                self._entrance_closed = n_tokens is None
                return
            queue.pop(0)
            served.state = State.RUNNING
            if served.entered_s is None:
                served.entered_s = self._clock.now_s
            insort(self._running, served, key=_by_arrival)
            insort(self._prompting, served, key=_by_arrival)
            insort(work, (served, n_tokens), key=_arrival_of)

    def _steps_alike(
        self,
        work: list[tuple[Served, int]],
        alone: tuple[Served, int] | None,
        n_decoding: int,
        n_prompt_tokens: int,
    ) -> int:
        """How many steps from this one on compute the same number of tokens of the same sequences.

        `alone` is the prompt that takes all that those who decode leave, if one does.
        """
        most = _MOST_STEPS
        if work:
            if alone is None:
                return 1
            served, n_tokens = alone
            if n_decoding + n_tokens < self._limits.step_tokens or served.n_pending <= n_tokens:
                return 1
            n_alike = served.n_pending // n_tokens if n_tokens > 1 else served.n_pending - 1
            most = min(most, n_alike)
        most = min(most, self._looks.next_step - self._steps + 1)
        most = min(most, self._dues.next_step - self._steps)
        if self._entrance_closed and (self._parked or self._waiting):
            most = min(most, self._block_tokens - self._steps % self._block_tokens)
        until_s = min(self._turns.next_s, self._next_load_s()) - self._clock.now_s
        return self._reads.steps_until(
            until_s, most, self._costs.fixed_s(n_prompt_tokens), self._costs.kv_bytes_per_s
        )

    def _go_ahead(self, served: Served, n_tokens: int, n_steps: int) -> tuple[int, int]:
        """Room for the same part of a prompt in each of so many steps; returns for how many steps
        there was some, and how many of the parts are still to be committed."""
        assert served.cache is not None
        # One that was parked may come upon its own blocks, which are not to be evicted for it.
        if self._keeps_all and len(served.tokens) == served.n_prompt:
            has_room = self._manager.reserve(served.cache, n_steps * n_tokens)
            return (n_steps, n_steps) if has_room else (1, 1)
        for n_done in range(1, n_steps):  # each step lets go of what lies behind windows
            start = served.n_computed
            self._manager.commit(served.cache, served.tokens[start : start + n_tokens])
            if not self._manager.reserve(served.cache, n_tokens):
                return n_done, 0
        return n_steps, 1

    def _pass_steps(self, n_steps: int, one_s: float, n_prompt_tokens: int) -> None:
        begin_s = self._clock.now_s
        fixed_s = self._costs.fixed_s(n_prompt_tokens)
        end_s = begin_s + self._reads.steps_s(n_steps, fixed_s, self._costs.kv_bytes_per_s)
        if n_steps > 1:
            self._store_until(end_s, one_s)
        self._clock.now_s = end_s
        self._reads.advance(n_steps)
        self._steps += n_steps - 1
        self.busy_s += end_s - begin_s
        self.running_s += (end_s - begin_s) * len(self._running)

    def _end_step(self, work: list[tuple[Served, int]], n_parts: int) -> None:
        """What was computed is committed; then first tokens, last ones, and who ends."""
        looked = self._looks.take(self._steps)
        found = sorted([*work, *((served, 0) for served in looked)], key=_arrival_of)
        for served, n_tokens in found:
            if n_tokens:
                start, stop = served.n_computed, served.n_computed + n_tokens * n_parts
                assert served.cache is not None
                self._manager.commit(served.cache, served.tokens[start:stop])
            else:
                self._commit_answer(served, self._steps)
        ended = []
        for served, n_tokens in found:
            if n_tokens and served.n_pending:
                continue
            if n_tokens:
                self._begin_answer(served)
            if served.end_step == self._steps:
                ended.append(served)
            else:
                self._await_look(served)
        for served in ended:
            self._running.remove(served)
            self._let_go(served)
            self._end(served)

    def _begin_answer(self, served: Served) -> None:
        """Its prompt is computed, and it has got its first token."""
        self._prompting.remove(served)
        served.decodes_from(self._steps)
        if served.first_s is None:
            served.first_s = self._clock.now_s
        self._reads.set(served, served.n_computed + 1, 1)
        self._await_block(served)

    # ---- sequences ----------------------------------------------------------------------------

    def _await_block(self, served: Served) -> None:
        assert served.cache is not None
        position = len(served.cache.tables[0].blocks) * self._block_tokens
        self._dues.add(served, served.step_of(position))

    def _await_look(self, served: Served) -> None:
        n_tokens = served.n_computed
        n_more = self._block_tokens - n_tokens % self._block_tokens
        if not self._keeps_all:
            n_more = min(n_more, self._reads.tokens_to_change(n_tokens))
        step = served.step_of(n_tokens + n_more) - 1
        self._looks.add(served, min(step, served.end_step))

    def _commit_answer(self, served: Served, step: int) -> None:
        """What it has computed up to the end of a step."""
        assert served.cache is not None
        n = served.computed_after(step) - served.cache.n_tokens
        if n:
            self._manager.commit(served.cache, filled(n, served.filler))

    def _park(self, served: Served) -> None:
        if served.end_step:
            self._commit_answer(served, self._steps - 1)
            served.keep_answer(self._steps - 1)
        else:
            self._prompting.remove(served)
        self._running.remove(served)
        self._let_go(served)
        served.state = State.PARKED
        insort(self._parked, served, key=_by_arrival)
        self.parked_total += 1

    def _let_go(self, served: Served) -> None:
        assert served.cache is not None
        self._reads.remove(served)
        self._manager.release(served.cache)
        self._looks.drop(served)
        self._dues.drop(served)
        served.cache = None
        self._entrance_closed = False

    def _land(self) -> None:
        """Those whose prefix has come queue again."""
        for served in [s for s in self._loading if s.lift is not None and s.lift.ended]:
            self._loading.remove(served)
            was_inside = served.cached_tokens is not None
            served.state = State.PARKED if was_inside else State.WAITING
            insort(self._parked if was_inside else self._waiting, served, key=_by_arrival)
            self._entrance_closed = False

    def _end(self, served: Served) -> None:
        served.state = State.FINISHED
        served.ended_s = self._clock.now_s
        self._finished(served)
        self._turns.end(served, self._clock.now_s)

    def _read_s(self) -> float:
        return self._reads.bytes / self._costs.kv_bytes_per_s
