"""One streamed chat request and when its pieces arrived.

A request that fails in any way becomes a `Sample` with an `error`; nothing is raised, so that one
bad stream does not end a run. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Sample:
    """One request; token counts are the server's usage, or counted chunks if `counted`."""

    start_s: float
    end_s: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()  # between pieces of text
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted: bool = False
    text: str = field(default="", repr=False)
    error: str | None = None  # kind, the same for like failures
    error_detail: str = ""


@dataclass(slots=True)
class _Stream:
    """What a stream has said so far."""

    arrivals_s: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    finished: bool = False
    error: str | None = None

    def take(self, event: dict[str, Any], now_s: float) -> None:
        if "error" in event:
            self.error = _message(event)
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices", ()):
            if piece := (choice.get("delta") or {}).get("content"):
                self.arrivals_s.append(now_s)
                self.pieces.append(piece)
            self.finished = self.finished or choice.get("finish_reason") is not None


async def stream_chat(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Sample:
    """POST `body`, which asks for a stream, and time every piece of text that comes back."""
    start_s = time.perf_counter()
    stream = _Stream()
    error, detail = None, ""
    try:
        async with client.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                error, detail = f"HTTP {response.status_code}", _body_message(response)
            else:
                async for event in _events(response):
                    stream.take(event, time.perf_counter())
    except httpx.TimeoutException as failure:
        error, detail = "timeout", str(failure) or type(failure).__name__
    except httpx.ConnectError as failure:
        error, detail = "no connection", str(failure)
    except (httpx.TransportError, json.JSONDecodeError) as failure:
        error, detail = "broken stream", str(failure) or type(failure).__name__
    if error is None and stream.error is not None:
        error, detail = "error event", stream.error
    if error is None and not stream.finished:
        error, detail = "broken stream", "it ended without a finish_reason"
    return _sample(start_s, time.perf_counter(), stream, error, detail)


def _sample(
    start_s: float, end_s: float, stream: _Stream, error: str | None, detail: str
) -> Sample:
    arrivals_s, usage = stream.arrivals_s, stream.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Sample(
        start_s=start_s,
        end_s=end_s,
        ttft_s=arrivals_s[0] - start_s if arrivals_s else None,
        gaps_s=tuple(b - a for a, b in pairwise(arrivals_s)),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        output_tokens=usage.get("completion_tokens", len(arrivals_s)),
        counted="completion_tokens" not in usage,
        text="".join(stream.pieces),
        error=error,
        error_detail=detail,
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of every `data:` line of a server-sent event stream, up to [DONE]."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data = line[len("data:") :].strip()
            if data == "[DONE]":
                return
            event = json.loads(data)
            if isinstance(event, dict):
                yield event


def _body_message(response: httpx.Response) -> str:
    try:
        return _message(response.json())
    except json.JSONDecodeError:
        return response.text[:200]


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if message is not None else body)[:200]
