"""One conversation with the engine: what is sent, what is kept, what each answer cost.

Nothing here reads or prints. `stop` may be called at any time, from a signal handler too: the
answer then ends early and stays in the conversation as far as it came.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdover.errors import HoldoverError
from holdover.units import format_bytes

if TYPE_CHECKING:
    from holdover.engine.api import EngineLike, Event, SamplingParams
    from holdover.spec.layout import CacheLayout
    from holdover.text import Tokenizer


@dataclass(slots=True)
class ChatSession:
    """The whole conversation is the prompt of every turn.

    `params.max_tokens` is a wish: an answer gets what the context leaves if that is less. `note` is
    the last turn's cost, and how it ended if that was not by itself.
    """

    engine: EngineLike
    tokenizer: Tokenizer
    layout: CacheLayout
    max_context_tokens: int
    params: SamplingParams
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    _turn: _Turn | None = None
    _stop_asked: bool = False

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def answer(self, text: str) -> Iterator[str]:
        """Pieces of the answer. A turn that fails, or is stopped before its first word, leaves no
        trace."""
        self._turn, self._stop_asked = None, False
        self.messages.append({"role": "user", "content": text})
        try:
            prompt = tuple(self.tokenizer.encode_chat(self.messages))
            turn = self._turn = _Turn(self.engine, prompt, self._params_for(prompt))
            if self._stop_asked:
                turn.stop()
            yield from turn.pieces()
        except BaseException:
            self.messages.pop()
            raise
        if turn.stopped and not turn.text:
            self.messages.pop()
            self.note = "stopped before the answer began; your message is dropped"
            return
        self.messages.append({"role": "assistant", "content": turn.text})
        self.note = f"{turn.costs(self.layout)}{self._ending(turn)}"

    def stop(self) -> bool:
        """Ask for the end of the running answer; False if that was asked before."""
        if self._stop_asked:
            return False
        self._stop_asked = True
        if self._turn is not None:
            self._turn.stop()
        return True

    def _params_for(self, prompt: tuple[int, ...]) -> SamplingParams:
        left_tokens = self.max_context_tokens - len(prompt)
        asked_tokens = self.params.max_tokens
        if asked_tokens is None or asked_tokens <= left_tokens or left_tokens < 1:
            return self.params  # where nothing is left, the engine says so
        return replace(self.params, max_tokens=left_tokens)

    def _ending(self, turn: _Turn) -> str:
        if turn.stopped:
            return ", stopped: the answer so far is kept"
        if turn.finish_reason != "length":
            return ""
        if turn.total_tokens >= self.max_context_tokens:
            full = f"the context of {self.max_context_tokens} tokens is full"
            return f", cut off: {full}; /clear starts over"
        return ", cut off by --max-tokens"


class _Turn:
    """One request and its times; closing the iterator early cancels it."""

    def __init__(self, engine: EngineLike, prompt: tuple[int, ...], params: SamplingParams) -> None:
        self._engine = engine
        # None asks for the end. This kind of queue may be written to by a signal handler.
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._start_s = time.perf_counter()
        self._first_s: float | None = None
        self._end_s = self._start_s
        self._last: Event | None = None
        self.text = ""
        self._request_id = engine.submit(prompt, params, self._events.put)

    def stop(self) -> None:
        self._events.put(None)

    def pieces(self) -> Iterator[str]:
        try:
            while self._last is None:
                event = self._events.get()
                if event is None:
                    self._engine.cancel(self._request_id)  # its last event is on the way
                    continue
                self._end_s = time.perf_counter()
                if self._first_s is None and event.token_ids:
                    self._first_s = self._end_s
                self.text += event.text
                yield event.text
                if event.finish_reason is not None:
                    self._last = event
        finally:
            if self._last is None:
                self._engine.cancel(self._request_id)
        if self._last.finish_reason == "error":
            raise HoldoverError(f"the engine failed: {self._last.error}")

    @property
    def finish_reason(self) -> str | None:
        return None if self._last is None else self._last.finish_reason

    @property
    def stopped(self) -> bool:
        return self.finish_reason == "cancelled"

    @property
    def total_tokens(self) -> int:
        assert self._last is not None
        assert self._last.usage is not None, "the last event has no usage"
        return self._last.usage.prompt_tokens + self._last.usage.completion_tokens

    def costs(self, layout: CacheLayout) -> str:
        assert self._last is not None
        usage = self._last.usage
        assert usage is not None, "the last event has no usage"
        first_s = self._first_s if self._first_s is not None else self._end_s
        # The last token was never fed back: it has no rows.
        n_stored = usage.prompt_tokens + max(0, usage.completion_tokens - 1)
        held_bytes = layout.held_bytes(layout.live_blocks(n_stored))
        parts = [
            f"KV {format_bytes(held_bytes)} for {n_stored} tokens",
            f"reused {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens",
            f"first token {1000 * (first_s - self._start_s):.0f} ms",
        ]
        if usage.forgotten_tokens:
            parts.insert(1, f"{usage.forgotten_tokens} of them forgotten")
        if usage.completion_tokens > 1 and self._end_s > first_s:
            rate = (usage.completion_tokens - 1) / (self._end_s - first_s)
            parts.append(f"{rate:.1f} tokens/s")
        return ", ".join(parts)
