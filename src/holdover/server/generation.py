"""From the engine's thread to the event loop: one request's answers as batches of events.

    engine thread --sink--> mailbox --event loop--> what has arrived --> events() --> client

The sink never waits, so a slow client costs the engine nothing; what it has not read yet waits
here, which its max_tokens bounds. Whoever stops reading must call `cancel`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdover.engine.api import (
    EngineLike,
    Event,
    EventSink,
    FinishReason,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from holdover.server.explain import Book, Explained, Origin
from holdover.server.mailbox import Mailbox
from holdover.server.metrics import Metrics
from holdover.server.request_log import Tally


@dataclass(frozen=True, slots=True)
class Job:
    """`n` answers to each prompt, for one tenant."""

    name: str  # the id that the client sees
    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    n: int
    tenant: str
    started_s: float  # time.perf_counter() when the request came in
    origin: Origin = field(default_factory=Origin)


@dataclass(slots=True)
class Answer:
    """One answer, put together from its events."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, event: Event) -> None:
        self.text += event.text
        self.logprobs += event.logprobs
        self.finish_reason = event.finish_reason


class Generation:
    """A job in the engine. Create, iterate `events()` on the loop, `cancel()` in any case."""

    def __init__(
        self,
        engine: EngineLike,
        mailbox: Mailbox,
        metrics: Metrics,
        job: Job,
        log: Callable[[str], None] | None = None,
        book: Book | None = None,
    ) -> None:
        """Submit the job. Raises RequestError, with nothing left in the engine.

        `log` gets one line when it has ended, in whatever way; `book` why what was reused.
        """
        self._engine = engine
        self._metrics = metrics
        self._book = book
        self._job = job
        self._log: Callable[[str], None] | None = None  # until it is accepted
        self._tally = Tally()
        self._arrived: list[tuple[float, Event]] = []  # with the time.perf_counter() of each
        self._news = asyncio.Event()
        self._request_ids: list[str] = []
        n_answers = len(job.prompts) * job.n
        self._open = set(range(n_answers))
        self.usages: list[Usage | None] = [None] * n_answers
        self._last_token_s: list[float | None] = [None] * n_answers
        try:
            for i, prompt in enumerate(job.prompts):
                sink = self._sink(mailbox, i * job.n)
                name = engine.submit(prompt, job.params, sink, n=job.n, tenant=job.tenant)
                self._request_ids.append(name)
                if book is not None:
                    book.named(name, job.name)
        except BaseException:
            self._open.clear()  # a request that was refused has no answers to count
            self.cancel()
            raise
        self._log = log

    def _sink(self, mailbox: Mailbox, first: int) -> EventSink:
        loop, take = asyncio.get_running_loop(), self._take

        def sink(event: Event) -> None:
            moved = event if not first else replace(event, index=first + event.index)
            mailbox.post(loop, take, (time.perf_counter(), moved))

        return sink

    def _take(self, item: tuple[float, Event]) -> None:
        self._arrived.append(item)
        self._news.set()

    async def events(self) -> AsyncIterator[list[Event]]:
        """All events until every answer has ended, as many at a time as there are."""
        while self._open:
            await self._news.wait()
            self._news.clear()
            batch, self._arrived = self._arrived, []
            for at_s, event in batch:
                self._observe(at_s, event)
            yield [event for _, event in batch]

    @property
    def is_open(self) -> bool:
        """Whether events are still to come."""
        return bool(self._open)

    def explanation(self) -> dict[str, Any] | None:
        """Of what has ended."""
        assert self._book is not None, "nobody keeps a book"
        return self._book.explanation(self._job.tenant, self._job.name)

    def cancel(self) -> None:
        """Stop what still runs, and close the books. Harmless when all is done."""
        for request_id in self._request_ids:
            self._engine.cancel(request_id)
        for _ in self._open:
            self._metrics.answers.labels("cancelled").inc()
        if self._log is not None:
            self._log(self._tally.line(self._job, self.usages, len(self._open)))
            self._log = None
        self._open.clear()

    def _observe(self, at_s: float, event: Event) -> None:
        metrics, started_s = self._metrics, self._job.started_s
        last_s = self._last_token_s[event.index]
        self._tally.take(at_s - started_s, event)
        if event.token_ids:
            if last_s is None:
                metrics.ttft_s.observe(at_s - started_s)
            else:
                n = len(event.token_ids)
                metrics.gap_s.observe((at_s - last_s) / n, n)
            self._last_token_s[event.index] = at_s
        if event.finish_reason is not None:
            self.usages[event.index] = event.usage
            self._open.discard(event.index)
            metrics.answers.labels(event.finish_reason).inc()
            metrics.whole_s.observe(at_s - started_s)
            self._explain(event)

    def _explain(self, event: Event) -> None:
        reuse = None if event.usage is None else event.usage.reuse
        if reuse is None:
            return
        job, (prompt, sibling) = self._job, divmod(event.index, self._job.n)
        explained = Explained.of(reuse, job.origin, job.prompts[prompt])
        self._metrics.count_reuse(reuse, explained.reason)
        self._tally.explained(explained)
        if self._book is not None and not sibling:  # the first computes the prompt for the others
            self._book.note(job.tenant, job.name, explained)
