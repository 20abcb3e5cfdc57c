"""`holdover chat`: a terminal chat on the engine, in this process.

One message per line, from a terminal or a pipe. After each answer one line says what it cost: KV
bytes that the conversation holds, prompt tokens reused, time to the first token, tokens per second.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli.options import ENGINE_FIELDS, MODEL_FIELDS, PLAN_FIELDS, config_command
from holdover.cli.screen import warn
from holdover.config import Config
from holdover.errors import HoldoverError, RequestError
from holdover.units import format_bytes

if TYPE_CHECKING:
    from holdover.engine.api import EngineLike, Event, SamplingParams
    from holdover.spec.layout import CacheLayout
    from holdover.text import Tokenizer

_HELP = "/reset starts over, /stats shows the engine, /exit ends; Ctrl-C stops an answer"


def register(app: typer.Typer) -> None:
    @config_command(app, "chat", MODEL_FIELDS + PLAN_FIELDS + ENGINE_FIELDS)
    def chat(
        config: Config,
        system: Annotated[str | None, typer.Option(help="System message.")] = None,
        temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
        top_p: Annotated[float, typer.Option(help="Share of likely tokens.")] = 0.9,
        seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None,
        max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    ) -> None:
        """Talk to a model in the terminal, and see what it costs."""
        from holdover.cli.loading import load_engine, open_model, starting
        from holdover.engine.api import SamplingParams
        from holdover.engine.planning import plan_serving
        from holdover.plan.tables import short_lines

        params = SamplingParams(
            temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens
        )
        with starting():
            planned = plan_serving(config, open_model=open_model)
            print("\n".join(short_lines(planned.plan)), file=sys.stderr, flush=True)
            warn(planned.warnings)
            engine = load_engine(planned)
        session = ChatSession(engine, engine.tokenizer, planned.layout, params, system)
        try:
            _talk(session)
        finally:
            engine.shutdown(0.0)


@dataclass(slots=True)
class ChatSession:
    """One conversation; the whole of it is the prompt of every turn."""

    engine: EngineLike
    tokenizer: Tokenizer
    layout: CacheLayout
    params: SamplingParams
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def answer(self, text: str) -> Iterator[str]:
        """Pieces of the answer, then the line of costs. A turn that fails leaves no trace."""
        self.messages.append({"role": "user", "content": text})
        try:
            prompt = tuple(self.tokenizer.encode_chat(self.messages))
            turn = _Turn(self.engine, prompt, self.params)
            yield from turn.pieces()
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": turn.text})
        yield f"\n[{turn.costs(self.layout)}]\n"


class _Turn:
    """One request and its times; closing the iterator early cancels it."""

    def __init__(self, engine: EngineLike, prompt: tuple[int, ...], params: SamplingParams) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._start_s = time.perf_counter()
        self._first_s: float | None = None
        self._end_s = self._start_s
        self._last: Event | None = None
        self.text = ""
        self._request_id = engine.submit(prompt, params, self._events.put)

    def pieces(self) -> Iterator[str]:
        try:
            while self._last is None:
                event = self._events.get()
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
        if usage.completion_tokens > 1 and self._end_s > first_s:
            rate = (usage.completion_tokens - 1) / (self._end_s - first_s)
            parts.append(f"{rate:.1f} tokens/s")
        if self._last.finish_reason == "length":
            parts.append("cut off: no more tokens allowed")
        return ", ".join(parts)


def _talk(session: ChatSession) -> None:
    if sys.stdin is None:  # closed: nothing will ever be said
        return
    interactive = sys.stdin.isatty()
    if interactive:
        print(_HELP, file=sys.stderr)
    for line in _lines(interactive):
        text = line.strip()
        if text == "/exit":
            return
        if text == "/reset":
            session.reset()
            print("starting over")
        elif text == "/stats":
            print(_stats_text(session.engine))
        elif text.startswith("/"):
            print(_HELP)
        elif text:
            _answer(session, text, interactive)


def _answer(session: ChatSession, text: str, interactive: bool) -> None:
    pieces = session.answer(text)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except RequestError as error:
        print(f"holdover: {error}; /reset starts over", file=sys.stderr)
        if not interactive:
            raise
    except KeyboardInterrupt:
        if not interactive:
            raise
        print("\n[stopped]")
    finally:
        pieces.close()  # type: ignore[attr-defined]


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from sys.stdin
        return
    import readline  # noqa: F401  (gives input() its history and editing)

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _stats_text(engine: EngineLike) -> str:
    stats = engine.stats()
    reused = f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens reused"
    return (
        f"arena {format_bytes(stats.allocated_bytes)}: {format_bytes(stats.held_bytes)} held by "
        f"running sequences, {format_bytes(stats.cached_bytes)} kept for reuse\n"
        f"{stats.steps} steps, {stats.generated_tokens} tokens generated, {reused}, "
        f"{stats.evicted_blocks} blocks evicted"
    )
