"""What servers say in a stream of chat events, and where each says it.

| server | text | usage | cached tokens |
|---|---|---|---|
| Holdover | `content` | last event, no choices | `prompt_tokens_details` |
| vLLM | `content`; `reasoning`, earlier `reasoning_content`, some versions both | last event | `prompt_tokens_details`, null unless --enable-prompt-tokens-details |
| SGLang | `content`, `reasoning_content` | last event | `prompt_tokens_details`, null unless --enable-cache-report |
| llama.cpp | `content`, null in the first event; `reasoning_content` | last event, in old versions none | there, and in `timings` |
| Ollama | `content`, `reasoning` | last event | not said |
| DeepSeek | `content`, `reasoning_content` | last event | `prompt_cache_hit_tokens` |

Errors in a stream are `{"error": ...}`, `{"object": "error", ...}`, or, from older llama.cpp, a line
of its own that begins with `error:`.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass(slots=True)
class EventLines:
    """Server-sent events out of bytes however they are cut; comments and names are passed over."""

    rest: bytes = b""
    done: bool = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The JSON of every `data:` line that is whole. Raises ValueError for what is no JSON."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            yield from self._event(line)

    def end(self) -> Iterator[Event]:
        """A last line that no line end followed."""
        line, self.rest = self.rest, b""
        yield from self._event(line)

    def _event(self, line: bytes) -> Iterator[Event]:
        name, colon, value = line.strip().partition(b":")
        if not colon or name not in (b"data", b"error") or self.done:
            return
        value = value.strip()
        if value == b"[DONE]":
            self.done = True
            return
        event = json.loads(value)
        if isinstance(event, dict):
            yield event if name == b"data" else {"error": event.get("error", event)}


@dataclass(slots=True)
class Said:
    """What a stream has said so far."""

    arrivals_s: list[float] = field(default_factory=list)  # of events with text or reasoning
    content_s: float | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    usage: Event = field(default_factory=dict)
    timings: Event = field(default_factory=dict)

    def take(self, event: Event, at_s: float) -> None:
        if event.get("error") or event.get("object") == "error":
            self.error = message_of(event)
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        for choice in event.get("choices") or ():
            self._take_delta(choice.get("delta") or {}, at_s)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_delta(self, delta: Event, at_s: float) -> None:
        content = delta.get("content")
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if content and self.content_s is None:
            self.content_s = at_s
        if content or reasoning:
            self.arrivals_s.append(at_s)
            self.content.append(content or "")
            self.reasoning.append(reasoning or "")

    @property
    def prompt_tokens(self) -> int | None:
        if "prompt_tokens" in self.usage:
            return _count(self.usage["prompt_tokens"])
        if "prompt_n" in self.timings:  # those computed
            return (_count(self.timings["prompt_n"]) or 0) + (self.cached_tokens or 0)
        return None

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.get("prompt_tokens_details") or {}
        for holder, key in (
            (details, "cached_tokens"),
            (self.usage, "prompt_cache_hit_tokens"),
            (self.timings, "cache_n"),
        ):
            if holder.get(key) is not None:
                return _count(holder[key])
        return None

    @property
    def output_tokens(self) -> int | None:
        if "completion_tokens" in self.usage:
            return _count(self.usage["completion_tokens"])
        return _count(self.timings.get("predicted_n"))


def message_of(body: Any) -> str:
    """The sentence in a body or event that reports an error."""
    error = body.get("error") if isinstance(body, dict) else None
    if error is None and isinstance(body, dict):
        error = body.get("message") or body.get("detail")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if message is not None else body)[:200]


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
