"""The engine: a thread that turns requests into events, one step after the other.

    any thread     submit, cancel, stats, shutdown
       | inbox     commands, run between two steps
    its thread     schedule -> run -> sample -> commit -> emit

Everything but the inbox, the open requests and the last stats belongs to the engine's thread. A
step that fails ends the running requests and no other; rows or logits that are not finite end the
request they are of, and a sink that fails its own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from holdover.cache.costs import MEASURED_TOKENS
from holdover.cache.ends import HiddenStates
from holdover.cache.keeping import Kept
from holdover.cache.manager import CacheManager
from holdover.engine.admission import check_request
from holdover.engine.answer import Answer, Request
from holdover.engine.api import (
    NOT_FINITE,
    QUEUE_FULL,
    SHUTTING_DOWN,
    EngineStats,
    Event,
    EventSink,
    FinishReason,
    SamplingParams,
)
from holdover.engine.runner import Runner
from holdover.engine.sampler import sample
from holdover.engine.scheduler import Batch, Scheduler, batch_of
from holdover.engine.sequence import Sequence, State
from holdover.errors import RequestError
from holdover.kernels.base import KernelBackend
from holdover.models.base import Model
from holdover.spec.limits import Limits
from holdover.text.tokenizer import Tokenizer

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Engine:
    """Serves from its construction to `shutdown`. `limits.max_context_tokens` is what one sequence
    can always have; `planned_bytes` and `allocated_bytes` of the arena are for stats. Of requests
    that have not begun there are never more than `max_waiting_requests`."""

    def __init__(
        self,
        *,
        model: Model,
        kernels: KernelBackend,
        manager: CacheManager,
        tokenizer: Tokenizer,
        limits: Limits,
        planned_bytes: int,
        allocated_bytes: int,
        max_waiting_requests: int,
        fingerprint: str = "",
        reuses_prefixes: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._max_waiting = max_waiting_requests
        self._reuses_prefixes = reuses_prefixes
        self.limits = limits
        self._vocab_size = min(tokenizer.vocab_size, model.geometry.vocab_size)
        self._manager = manager
        self._residencies = tuple(group.residency for group in manager.layout.spec.groups)
        self._scheduler = Scheduler(manager, limits)
        self._runner = Runner(model, kernels, manager)
        self._arena_bytes = (planned_bytes, allocated_bytes)
        self._request_ids = itertools.count()
        self._arrivals = itertools.count()
        self._answers: dict[Sequence, Answer] = {}  # those of open requests
        self._steps = 0
        self._generated_tokens = 0
        self._stopped = False
        self._flush_s = 0.0
        self._changed = threading.Condition()  # guards the rest
        self._inbox: list[Callable[[], None]] = []
        self._open: dict[str, Request] = {}
        self._waiting: set[Request] = set()  # those of the open ones that have not begun
        self._refused_total = 0
        self._closing = False
        self._stats = self._snapshot()
        self._thread = threading.Thread(target=self._main, name="holdover-engine", daemon=True)
        self._thread.start()

    # ---- any thread ---------------------------------------------------------------------------

    def submit(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        on_event: EventSink,
        *,
        n: int = 1,
        tenant: str = "",
    ) -> str:
        max_tokens = check_request(
            prompt, params, n, self._vocab_size, self.limits.max_context_tokens
        )
        request_id = f"request-{next(self._request_ids)}"
        request = Request(request_id, on_event)
        for index in range(n):
            # A tenant of its own finds nobody's blocks.
            own = tenant if self._reuses_prefixes else f"{tenant}\0{request_id}/{index}"
            sequence = Sequence.of(
                next(self._arrivals), prompt, params, max_tokens, tenant=own, name=request_id,
                sibling=index, residencies=self._residencies,
            )  # fmt: skip
            request.answers[index] = Answer(request, index, sequence, self.tokenizer)
        with self._changed:
            if self._closing:
                raise RequestError(None, "the engine is shutting down", code=SHUTTING_DOWN)
            if len(self._waiting) >= self._max_waiting:
                self._refused_total += 1
                raise RequestError(
                    None, f"{len(self._waiting)} requests wait already; try again later", QUEUE_FULL
                )
            self._open[request.request_id] = request
            self._waiting.add(request)
            self._post(partial(self._enter, request))
        return request.request_id

    def cancel(self, request_id: str) -> None:
        with self._changed:
            request = self._open.get(request_id)
            if request is not None:
                self._post(partial(self._end, request, "cancelled"))

    def kept(self, tokens: tuple[int, ...], tenant: str = "") -> Future[Kept]:
        return self._between_steps(partial(self._manager.kept, tokens, tenant))

    def pin(self, tokens: tuple[int, ...], tenant: str, until_s: float) -> Future[None]:
        return self._between_steps(partial(self._manager.pin, tokens, tenant, until_s))

    def forget(
        self, tokens: tuple[int, ...], tenant: str = "", keep_tokens: int = 0
    ) -> Future[int]:
        return self._between_steps(partial(self._manager.forget, tokens, tenant, keep_tokens))

    def stats(self) -> EngineStats:
        """Of the last step; tiers are asked only here, not at each step."""
        return replace(self._stats, tiers=self._manager.tier_stats())

    def shutdown(self, grace_s: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._open, timeout=grace_s)
            self._flush_s = grace_s
            self._post(self._stop)
        self._thread.join()

    def _between_steps(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            self._stats = self._snapshot()

        with self._changed:
            if self._closing:
                raise RequestError(None, "the engine is shutting down", code=SHUTTING_DOWN)
            self._post(run)
        return future

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._changed.notify_all()

    # ---- the engine's thread ------------------------------------------------------------------

    def _main(self) -> None:
        try:
            if self._manager.weighs_loads:
                self._measure_prefill()
            busy = False
            while not self._stopped:
                with self._changed:
                    if not (busy or self._inbox):
                        self._changed.wait(self._manager.rest_s)
                    commands, self._inbox = self._inbox, []
                for command in commands:
                    command()
                if self._scheduler.has_work:
                    busy = self._guarded_step()
                else:
                    busy = False
                    self._manager.poll()
            self._manager.close(self._flush_s)
        except BaseException:
            _log.critical("the engine stops: it could not recover from an error", exc_info=True)
            self._abandon()

    def _measure_prefill(self) -> None:
        """What loads from tiers are compared with, before the first of them; nothing is kept."""
        n_tokens = min(MEASURED_TOKENS, self.limits.step_tokens, self.limits.max_context_tokens - 1)
        sequence = Sequence.of(0, (0,) * n_tokens, SamplingParams(), max_tokens=1)
        match = self._manager.match(sequence.tokens)
        sequence.cache = self._manager.admit(sequence.tokens, match, n_tokens)
        assert sequence.cache is not None, "the arena does not hold one sequence"
        batch = batch_of([(sequence, n_tokens)])
        self._runner.run(batch)  # the first pays for what is made once
        began_s = time.perf_counter()
        self._runner.run(batch)
        self._manager.observe(n_tokens, time.perf_counter() - began_s)
        self._manager.release(sequence.cache)

    def _guarded_step(self) -> bool:
        """Whether anything was computed: if not, all wait for tiers."""
        n_steps = self._steps
        try:
            events = self._step()
        except Exception as error:
            _log.exception("a step failed; its requests end with an error")
            events = self._fail_running(f"internal error: {type(error).__name__}")
            if not events:
                raise  # nobody to blame: the next step would fail alike
        self._stats = self._snapshot()
        for answer, event in events:
            self._emit(answer, event)
        return self._steps > n_steps

    def _step(self) -> list[tuple[Answer, Event]]:
        batch = self._scheduler.schedule()
        if batch is None:
            return []
        self._begun(batch)
        self._steps += 1
        began_s = time.perf_counter()
        logits, damaged, hidden = self._runner.run(batch)
        rows = [sequence.sample_row() for sequence in batch.sampled]
        sampled = sample(logits, rows) if rows else []
        tokens = dict(zip(batch.sampled, sampled, strict=True))
        failed = [batch.sequences[i] for i in damaged]
        failed += [s for s, token in tokens.items() if token is None and s not in failed]
        for sequence in failed:
            self._scheduler.finish(sequence)  # not committed: nobody may reuse its new rows
        self._scheduler.commit(batch)
        if hidden is not None:
            self._keep_ends(batch, hidden)
        self._manager.observe(len(batch.token_ids), time.perf_counter() - began_s)
        events = [self._failure(sequence) for sequence in failed]
        for sequence, token in tokens.items():
            if token is None or sequence.state is State.FINISHED:
                continue
            answer = self._answers[sequence]
            self._generated_tokens += 1
            event = answer.push(token)
            if event.finish_reason is not None:
                self._scheduler.finish(sequence)
            self._let_siblings_go(answer.request)
            events.append((answer, event))
        return events

    def _keep_ends(self, batch: Batch, hidden: HiddenStates) -> None:
        """Of the prompts that this step has computed to their end."""
        for sequence, row in zip(batch.computed, hidden, strict=True):
            if sequence.cache is not None and not sequence.n_generated:
                self._manager.ends.keep(sequence.cache, row)

    def _begun(self, batch: Batch) -> None:
        """Requests with a sequence in the batch wait no more."""
        if self._waiting:
            with self._changed:
                begun = (*batch.sequences, *batch.sampled)
                self._waiting -= {self._answers[s].request for s in begun}

    def _failure(self, sequence: Sequence) -> tuple[Answer, Event]:
        answer = self._answers[sequence]
        _log.error("%s: %s", answer.request.request_id, NOT_FINITE)
        self._let_siblings_go(answer.request)
        return answer, answer.end("error", NOT_FINITE)

    def _fail_running(self, reason: str) -> list[tuple[Answer, Event]]:
        """End whoever took part in the step; rows it wrote are not committed, so not in reuse."""
        events = []
        for sequence, answer in list(self._answers.items()):
            if sequence.state is State.RUNNING:
                self._scheduler.finish(sequence)
            elif sequence.state is not State.FINISHED:
                continue  # waiting or parked: not touched by the step
            self._let_siblings_go(answer.request)
            events.append((answer, answer.end("error", reason)))
        return events

    def _enter(self, request: Request) -> None:
        """Queue the first answer. The others follow when its prompt is there to be reused."""
        for answer in request.answers.values():
            answer.sequence.state = State.HELD_BACK
            self._answers[answer.sequence] = answer
        first, *request.held_back = request.answers.values()
        self._scheduler.add(first.sequence)

    def _let_siblings_go(self, request: Request) -> None:
        for answer in request.held_back:
            self._scheduler.add(answer.sequence)
        request.held_back = []

    def _end(self, request: Request, reason: FinishReason) -> None:
        """End a request from outside, unless it just ended by itself."""
        for answer in self._take_out(request):
            self._emit(answer, answer.end(reason))

    def _take_out(self, request: Request) -> list[Answer]:
        """Nothing of the request is computed any more; returns the answers that were open."""
        answers = list(request.answers.values())
        self._let_siblings_go(request)
        for answer in answers:
            self._scheduler.finish(answer.sequence)
        self._stats = self._snapshot()
        return answers

    def _emit(self, answer: Answer, event: Event) -> None:
        request = answer.request
        if answer.index not in request.answers:
            return  # its sink failed before this event's turn
        if event.finish_reason is not None:
            self._forget([answer])
        try:
            request.sink(event)
        except Exception:
            _log.exception("the sink of %s failed; the request is dropped", request.request_id)
            self._forget(self._take_out(request))

    def _forget(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            del answer.request.answers[answer.index]
            del self._answers[answer.sequence]
            if not answer.request.answers:
                with self._changed:
                    del self._open[answer.request.request_id]
                    self._waiting.discard(answer.request)
                    self._changed.notify_all()

    def _stop(self) -> None:
        for request in list(self._open.values()):
            self._end(request, "cancelled")
        self._stopped = True

    def _abandon(self) -> None:
        """Nothing can be trusted any more: tell every client, take no new ones."""
        with self._changed:
            self._closing = True
            left = [
                answer for request in self._open.values() for answer in request.answers.values()
            ]
            self._open.clear()
            self._changed.notify_all()
        for answer in left:
            try:
                answer.request.sink(answer.end("error", "internal error: the engine stopped"))
            except Exception:
                _log.exception("the sink of %s failed", answer.request.request_id)

    def _snapshot(self) -> EngineStats:
        scheduler, manager = self._scheduler, self._manager
        planned_bytes, allocated_bytes = self._arena_bytes
        inside = len(scheduler.running) + len(scheduler.parked)
        return EngineStats(
            running=len(scheduler.running),
            waiting=sum(s.state is not State.FINISHED for s in self._answers) - inside,
            parked=len(scheduler.parked),
            steps=self._steps,
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            generated_tokens=self._generated_tokens,
            parked_total=scheduler.parked_total,
            evicted_blocks=manager.evicted_blocks,
            planned_bytes=planned_bytes,
            allocated_bytes=allocated_bytes,
            held_bytes=manager.held_bytes,
            logical_bytes=manager.logical_bytes,
            cached_bytes=manager.cached_bytes,
            declined_loads=manager.declined_loads,
            lost_blocks=manager.lost_blocks,
            requantised_tokens=scheduler.requantised_tokens,
            kept_prompt_ends=scheduler.kept_prompt_ends,
            refused_total=self._refused_total,
            decode_read_blocks=self._runner.reads.read_blocks,
            decode_context_blocks=self._runner.reads.context_blocks,
            decode_read_bytes=self._runner.reads.read_bytes,
            decode_context_bytes=self._runner.reads.context_bytes,
        )
