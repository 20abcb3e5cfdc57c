"""`holdover chat`: a terminal chat on the engine, in this process.

One message per line, from a terminal or a pipe. Answers go to stdout and nothing else does. After
each answer one line on stderr says what it cost: KV bytes that the conversation holds, prompt
tokens reused, time to the first token, tokens per second.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from holdover.cli.conversation import ChatSession
from holdover.cli.options import ENGINE_FIELDS, MODEL_FIELDS, PLAN_FIELDS, config_command
from holdover.cli.screen import warn
from holdover.config import Config, flag
from holdover.errors import ConfigError, RequestError
from holdover.units import format_bytes

_TOP_P_HELP = "Draw from the likeliest tokens that add up to this share."
_MAX_TOKENS_HELP = "Most tokens of an answer; what the context leaves when not given."
_HELP = """\
/clear     start over (also /reset)
/stats     what the engine holds and has reused
/help      this list
/quit      end (also /exit, /bye, Ctrl-D)
Ctrl-C     stop an answer, clear a line; at an empty prompt: end"""
_COMMAND = re.compile(r"/[a-z?]+")  # a message may well begin with /usr/bin


def register(app: typer.Typer) -> None:
    @config_command(app, "chat", MODEL_FIELDS + PLAN_FIELDS + ENGINE_FIELDS)
    def chat(
        config: Config,
        system: Annotated[str | None, typer.Option(help="System message.")] = None,
        temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
        top_p: Annotated[float, typer.Option(help=_TOP_P_HELP)] = 0.9,
        seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None,
        max_tokens: Annotated[int | None, typer.Option(help=_MAX_TOKENS_HELP)] = None,
    ) -> None:
        """Talk to a model in the terminal, and see what it costs."""
        from holdover.cli.loading import load_engine, open_model, starting
        from holdover.engine.api import SamplingParams
        from holdover.engine.planning import plan_serving
        from holdover.plan.tables import short_lines

        try:
            params = SamplingParams(
                temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens
            )
        except RequestError as error:
            raise ConfigError(flag(str(error.field)), error.reason) from error
        with starting():
            planned = plan_serving(config, open_model=open_model)
            _say("\n".join(short_lines(planned.plan)))
            warn(planned.warnings)
            engine = load_engine(planned)
        context_tokens = planned.limits.max_context_tokens
        session = ChatSession(
            engine, engine.tokenizer, planned.layout, context_tokens, params, system
        )
        try:
            if engine.tokenizer.chat_template is None:
                raise ConfigError(
                    "model",
                    f"{planned.model_name} has no chat template, it only goes on with text; "
                    "`holdover serve` does that at /v1/completions",
                )
            talk(session)
        finally:
            engine.shutdown(0.0)


def talk(session: ChatSession) -> None:
    """Until the input ends, or /quit."""
    if sys.stdin is None:  # closed: nothing will ever be said
        return
    interactive = sys.stdin.isatty()
    if interactive:
        _say("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends")
    for line in _typed_lines() if interactive else sys.stdin:
        text = line.strip()
        word = text.split(maxsplit=1)[0] if text else ""
        if _COMMAND.fullmatch(word):
            if _command(session, word):
                return
        elif text:
            _answer(session, text, interactive)


def _command(session: ChatSession, word: str) -> bool:
    """Do as told; True to end."""
    match word:
        case "/quit" | "/exit" | "/bye":
            return True
        case "/clear" | "/reset":
            session.clear()
            _say("starting over")
        case "/stats":
            _say(_stats_text(session))
        case "/help" | "/?":
            _say(_HELP)
        case _:
            _say(f"there is no command {word}; /help lists them")
    return False


def _answer(session: ChatSession, text: str, interactive: bool) -> None:
    pieces = session.answer(text)
    try:
        with _stoppable(session) if interactive else _as_it_is():
            for piece in pieces:
                print(piece, end="", flush=True)
        print(flush=True)
        _say(f"[{session.note}]")
    except RequestError as error:
        if not interactive:
            raise
        _say(f"holdover: {error}; /clear starts over")
    finally:
        pieces.close()  # type: ignore[attr-defined]


@contextmanager
def _stoppable(session: ChatSession) -> Iterator[None]:
    """Ctrl-C ends the answer and keeps it; a second one, before it has ended, ends the program."""

    def stop(number: int, frame: FrameType | None) -> None:
        if not session.stop():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _typed_lines() -> Iterator[str]:
    """Lines from the terminal, with history and editing, until Ctrl-D or Ctrl-C at an empty one."""
    import readline

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if not readline.get_line_buffer():
                return


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stats_text(session: ChatSession) -> str:
    stats = session.engine.stats()
    reused = f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens reused"
    return (
        f"arena {format_bytes(stats.allocated_bytes)}: {format_bytes(stats.held_bytes)} held by "
        f"running sequences, {format_bytes(stats.cached_bytes)} kept for reuse\n"
        f"{stats.steps} steps, {stats.generated_tokens} tokens generated, {reused}, "
        f"{stats.evicted_blocks} blocks evicted"
    )
