"""One streamed chat request and when its pieces arrived.

A request that fails in any way becomes a `Sample` with an `error`; nothing is raised, so that one
bad stream does not end a run. Times are seconds of `time.perf_counter`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any

from holdover.bench.dialect import EventLines, Said, message_of
from holdover.bench.wire import Answer, Wire, WireError

BUSY = ("HTTP 429", "HTTP 503")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # where a busy server does not say how long


@dataclass(frozen=True, slots=True)
class Sample:
    """One request; token counts are the server's usage, or counted events if `counted`."""

    start_s: float
    end_s: float
    ttft_s: float | None = None  # the first text, reasoning included
    content_s: float | None = None  # the first text of the answer itself
    gaps_s: tuple[float, ...] = ()  # between events with text
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    asked_tokens: int = 0
    counted: bool = False
    finish_reason: str | None = None
    text: str = field(default="", repr=False)
    reasoning: str = field(default="", repr=False)
    tries: int = 1
    error: str | None = None  # kind, the same for like failures
    error_detail: str = ""
    retry_after_s: float | None = None

    @property
    def per_token_s(self) -> float | None:
        """Between the first and the last text, for each token after the first (TPOT)."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)

    @property
    def events(self) -> int:
        return 0 if self.ttft_s is None else len(self.gaps_s) + 1

    @property
    def total_s(self) -> float:
        return self.end_s - self.start_s


async def stream_chat(wire: Wire, path: str, body: Mapping[str, Any], retries: int = 0) -> Sample:
    """POST `body`, which asks for a stream, and time every piece of text that comes back.

    A server that is busy (429, 503) is asked again up to `retries` times, when it says in
    Retry-After; the sample's time runs from the first try.
    """
    content = json.dumps(body).encode()
    asked_tokens = int(body.get("max_tokens") or 0)
    first_s: float | None = None
    for tries in range(1, retries + 2):
        sample = replace(await _try(wire, path, content), asked_tokens=asked_tokens, tries=tries)
        first_s = sample.start_s if first_s is None else first_s
        if sample.error not in BUSY or tries > retries:
            break
        wait_s = sample.retry_after_s
        await asyncio.sleep(FIRST_WAIT_S * 2 ** (tries - 1) if wait_s is None else wait_s)
    return _counted_from(sample, first_s) if first_s is not None else sample


def _counted_from(sample: Sample, first_s: float) -> Sample:
    waited_s = sample.start_s - first_s
    if not waited_s:
        return sample
    return replace(
        sample,
        start_s=first_s,
        ttft_s=None if sample.ttft_s is None else sample.ttft_s + waited_s,
        content_s=None if sample.content_s is None else sample.content_s + waited_s,
    )


async def _try(wire: Wire, path: str, content: bytes) -> Sample:
    start_s = time.perf_counter()
    said, lines = Said(), EventLines()

    def take(data: bytes, at_s: float) -> None:
        for event in lines.feed(data):
            said.take(event, at_s)

    error, detail, retry_after_s, end_s = None, "", None, None
    try:
        answer = await wire.post(path, content, take)
        end_s = answer.end_s
        if answer.status == 200:
            for event in lines.end():
                said.take(event, time.perf_counter())
        else:
            error, detail = f"HTTP {answer.status}", _body_message(answer)
            retry_after_s = _retry_after_s(answer.headers.get("retry-after"))
    except WireError as failure:
        error, detail = failure.kind, str(failure)
    except ValueError as failure:
        error, detail = "broken stream", str(failure)
    if error is None and said.error is not None:
        error, detail = "error event", said.error
    if error is None and said.finish_reason is None:
        error, detail = "broken stream", "it ended without a finish_reason"
    sample = _sample(start_s, end_s or time.perf_counter(), said)
    return replace(sample, error=error, error_detail=detail, retry_after_s=retry_after_s)


def _sample(start_s: float, end_s: float, said: Said) -> Sample:
    arrivals_s = said.arrivals_s
    output_tokens = said.output_tokens
    return Sample(
        start_s=start_s,
        end_s=end_s,
        ttft_s=arrivals_s[0] - start_s if arrivals_s else None,
        content_s=None if said.content_s is None else said.content_s - start_s,
        gaps_s=tuple(b - a for a, b in pairwise(arrivals_s)),
        prompt_tokens=said.prompt_tokens,
        cached_tokens=said.cached_tokens,
        output_tokens=len(arrivals_s) if output_tokens is None else output_tokens,
        counted=output_tokens is None,
        finish_reason=said.finish_reason,
        text="".join(said.content),
        reasoning="".join(said.reasoning),
    )


def _body_message(answer: Answer) -> str:
    try:
        return message_of(json.loads(answer.body))
    except ValueError:
        return answer.body.decode("utf-8", "replace")[:200]


def _retry_after_s(value: str | None) -> float | None:
    """Seconds or a date, at most LONGEST_WAIT_S; None for neither."""
    if value is None:
        return None
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, wait_s), LONGEST_WAIT_S)
