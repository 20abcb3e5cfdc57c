"""An engine that follows a script, for cases a model cannot be made to show on demand.

It keeps the contract of EngineLike: own thread, one token a step for every running request, events
through the sink, blocks held until a request ends. What it answers and how fast is the test's.
"""

from __future__ import annotations

import codecs
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from holdover.cache.explain import Reuse
from holdover.cache.keeping import Kept
from holdover.engine.admission import check_request
from holdover.engine.api import (
    NOT_FINITE,
    QUEUE_FULL,
    EngineStats,
    Event,
    EventSink,
    FinishReason,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from holdover.errors import RequestError

BLOCK_BYTES = 1024
CONTEXT_TOKENS = 4096
EOS = 256


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 ends an answer."""

    vocab_size = 257
    cuts_anywhere = True
    around_role = "<>"  # the chat template
    eos_token_ids = frozenset({EOS})

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        field_name: str = "prompt",
        max_context_tokens: int | None = None,
    ) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_context_tokens: int | None = None,
        tenant: str = "",
    ) -> list[int]:
        return self.chat_ids(self.chat_text(messages, tools, add_generation_prompt))

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        roles = [message["role"] for message in messages]
        if "tool" in roles:
            raise RequestError("messages", "the template does not know the role 'tool'")
        left, right = self.around_role
        text = "".join(f"{left}{m['role']}{right}{m['content']}" for m in messages)
        return text + (f"{left}assistant{right}" if add_generation_prompt else "")

    def chat_ids(
        self,
        text: str,
        max_context_tokens: int | None = None,
        tenant: str = "",
        *,
        begins: bool = True,
    ) -> list[int]:
        return self.encode(text)

    @property
    def chat_digest(self) -> bytes:
        return self.around_role.encode().ljust(16)


@dataclass
class _Running:
    request_id: str
    index: int
    prompt: tuple[int, ...]
    answer: bytes
    params: SamplingParams
    sink: EventSink
    cached: int
    sent: int = 0
    text: str = ""
    decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class ScriptedEngine:
    """`answer` gives the bytes that follow a prompt text; `step_s` is the pace."""

    def __init__(
        self,
        answer: Callable[[str], bytes] = lambda prompt: b"ok",
        step_s: float = 0.0,
        capacity_tokens: int = 10_000,
        context_tokens: int = CONTEXT_TOKENS,
    ) -> None:
        self.answer = answer
        self.step_s = step_s
        self.capacity_tokens = capacity_tokens
        self.context_tokens = context_tokens
        self.cached_tokens = 0  # said of every prompt
        self.forgotten_tokens: int | None = None  # said of every answer
        self.tenants: list[str] = []
        self.params: list[SamplingParams] = []
        self.prompts: list[tuple[int, ...]] = []
        self.pins: list[tuple[int, str, float]] = []
        self.forgotten: list[tuple[int, str, int]] = []  # tokens, tenant, tokens spared
        self.reuse: Callable[[tuple[int, ...]], Reuse] | None = None
        self.generated_tokens = 0
        self.longest_sink_s = 0.0
        self.fingerprint = "fp_scripted"
        self.most_running = 10_000
        self.refused_total = 0
        self._lock = threading.Condition()
        self._running: list[_Running] = []
        self._ids = itertools.count()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        on_event: EventSink,
        *,
        n: int = 1,
        tenant: str = "",
    ) -> str:
        check_request(prompt, params, n, ByteTokenizer.vocab_size, self.context_tokens)
        if len(self._running) >= self.most_running:
            self.refused_total += 1
            raise RequestError(None, "3 requests wait already; try again later", QUEUE_FULL)
        if len(prompt) > self.capacity_tokens:
            text = f"prompt has {len(prompt)} tokens; {self.capacity_tokens} would fit"
            raise RequestError("prompt", text, "context_length_exceeded")
        text = ByteTokenizer().decode(prompt)
        with self._lock:
            if self._stopped:
                raise RequestError(None, "the engine is shutting down", "shutting_down")
            request_id = f"r{next(self._ids)}"
            self.tenants.append(tenant)
            self.params.append(params)
            self.prompts.append(prompt)
            for index in range(n):
                cached = self.cached_tokens if index == 0 else len(prompt) - 1
                self._running.append(
                    _Running(request_id, index, prompt, self.answer(text), params, on_event, cached)
                )
            self._lock.notify()
        return request_id

    def cancel(self, request_id: str) -> None:
        with self._lock:
            self._finish([r for r in self._running if r.request_id == request_id], "cancelled")

    def kept(self, tokens: tuple[int, ...], tenant: str = "") -> Future[Kept]:
        return _done(Kept(len(tokens) - 1, {"arena": len(tokens)}))

    def pin(self, tokens: tuple[int, ...], tenant: str, until_s: float) -> Future[None]:
        self.pins.append((len(tokens), tenant, until_s))
        return _done(None)

    def forget(
        self, tokens: tuple[int, ...], tenant: str = "", keep_tokens: int = 0
    ) -> Future[int]:
        self.forgotten.append((len(tokens), tenant, keep_tokens))
        return _done(1)

    def stats(self) -> EngineStats:
        with self._lock:
            held = len(self._running) * BLOCK_BYTES
            return EngineStats(
                running=len(self._running),
                waiting=0,
                parked=0,
                steps=0,
                prompt_tokens=sum(map(len, self.prompts)),
                cached_tokens=7,
                generated_tokens=self.generated_tokens,
                parked_total=3,
                evicted_blocks=4,
                planned_bytes=1 << 20,
                allocated_bytes=1 << 20,
                held_bytes=held,
                logical_bytes=held // 2,
                cached_bytes=5,
                refused_total=self.refused_total,
            )

    def shutdown(self, grace_s: float) -> None:
        until_s = time.monotonic() + grace_s
        while self._running and time.monotonic() < until_s:
            time.sleep(0.01)
        with self._lock:
            self._finish(list(self._running), "cancelled")
            self._stopped = True
            self._lock.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not self._running and not self._stopped:
                    self._lock.wait()
                if self._stopped:
                    return
                for running in list(self._running):
                    self._step(running)
            time.sleep(self.step_s)

    def _step(self, running: _Running) -> None:
        if b"CRASH" in bytes(t for t in running.prompt if t < EOS):
            self._finish([running], "error", "Traceback: secret detail")
            return
        if b"NaN" in bytes(t for t in running.prompt if t < EOS):
            self._finish([running], "error", NOT_FINITE)
            return
        self.generated_tokens += 1
        over = running.sent == len(running.answer)
        token = EOS if over else running.answer[running.sent]
        running.sent += 1
        text = "" if over else running.decoder.decode(bytes([token]))
        reason: FinishReason | None = "stop" if over else None
        for stop in running.params.stop:
            if (running.text + text).endswith(stop):
                text, reason = text[: max(0, len(text) - len(stop))], "stop"
        running.text += text
        limit = running.params.max_tokens
        if reason is None and limit is not None and running.sent >= limit:
            reason = "length"
        logprobs: tuple[TokenLogprob, ...] = ()
        if running.params.logprobs is not None:
            top = tuple(((token + i) % EOS, -0.5 - i) for i in range(running.params.logprobs))
            logprobs = (TokenLogprob(token, -0.5, top),)
        self._emit(running, Event(running.index, text, (token,), logprobs), reason)

    def _finish(
        self, ended: list[_Running], reason: FinishReason, error: str | None = None
    ) -> None:
        for running in ended:
            self._emit(running, Event(running.index, "", (), error=error), reason)

    def _emit(self, running: _Running, event: Event, reason: FinishReason | None) -> None:
        usage = None
        if reason is not None:
            self._running.remove(running)
            reuse = None if self.reuse is None else self.reuse(running.prompt)
            usage = Usage(
                len(running.prompt), running.sent, running.cached, reuse, self.forgotten_tokens
            )
        started_s = time.perf_counter()
        running.sink(
            Event(
                event.index, event.text, event.token_ids, event.logprobs, reason, usage, event.error
            )
        )
        self.longest_sink_s = max(self.longest_sink_s, time.perf_counter() - started_s)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
