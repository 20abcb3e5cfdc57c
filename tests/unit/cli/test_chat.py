"""The terminal chat against a scripted engine: what it sends, prints and cleans up."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner

from holdover.cli.app import build_app
from holdover.cli.chat import talk as _talk
from holdover.cli.conversation import ChatSession
from holdover.codecs.base import uniform
from holdover.engine.api import EngineStats, Event, SamplingParams, Usage
from holdover.errors import HoldoverError, RequestError
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window

PLANES = attention_planes(1, 16)
LAYOUT = CacheLayout.of(
    CacheSpec.of((LayerSpec(PLANES, Full()), LayerSpec(PLANES, Window(32))), 16), uniform("fp32")
)
BLOCK_BYTES = 2 * 16 * 16 * 4  # of either group: keys and values of one layer


@dataclass
class ScriptedEngine:
    """Answers every prompt with the next script, from a thread as the real one does."""

    scripts: list[list[Event]]
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    asked: list[SamplingParams] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    sinks: list[Callable[[Event], None]] = field(default_factory=list)
    refuse: RequestError | None = None

    def submit(
        self, prompt: tuple[int, ...], params: SamplingParams, on_event: Callable[[Event], None],
        **more: Any,
    ) -> str:  # fmt: skip
        if self.refuse is not None:
            raise self.refuse
        self.prompts.append(prompt)
        self.asked.append(params)
        self.sinks.append(on_event)
        events = self.scripts.pop(0)
        threading.Thread(target=lambda: [on_event(event) for event in events]).start()
        return f"r{len(self.prompts)}"

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        usage = Usage(prompt_tokens=40, completion_tokens=1, cached_tokens=0)
        self.sinks[-1](Event(0, "", (), finish_reason="cancelled", usage=usage))

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 9, 30, 12, 7, 0, 0, 4096, 4096, 0, 0, 2048, 0)

    def shutdown(self, grace_s: float) -> None: ...


class WordTokenizer:
    """One id per character of the last message, and one per message before it."""

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return [1] * (len(messages) - 1) + [2] * len(messages[-1]["content"])


def answer_of(*words: str, cached: int = 0, prompt: int = 40) -> list[Event]:
    events = [Event(0, word, (7,)) for word in words]
    usage = Usage(prompt_tokens=prompt, completion_tokens=len(words) + 1, cached_tokens=cached)
    return [*events, Event(0, "", (0,), finish_reason="stop", usage=usage)]


def session_of(
    *scripts: list[Event], system: str | None = None, max_tokens: int | None = None
) -> ChatSession:
    params = SamplingParams(max_tokens=max_tokens)
    return ChatSession(ScriptedEngine(list(scripts)), WordTokenizer(), LAYOUT, 100, params, system)


def talk(session: ChatSession, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    _talk(session)


def test_a_piped_conversation_carries_on_and_says_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(
        answer_of("Hel", "lo"), answer_of("Yes", cached=36, prompt=60), system="Be brief."
    )
    talk(session, "Hi\n\n  And?  \n", monkeypatch)
    said, out = capsys.readouterr()
    assert said == "Hello\nYes\n", "answers and nothing else"
    # 42 rows stored after turn one: 3 blocks of the full group; the next query sees 11..41: 3.
    assert f"KV {6 * BLOCK_BYTES / 1024:.1f} KiB for 42 tokens" in out
    assert "reused 36 of 60 prompt tokens" in out
    assert "tokens/s" in out
    assert [m["content"] for m in session.messages] == ["Be brief.", "Hi", "Hello", "And?", "Yes"]


def test_closed_stdin_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # what Python makes of `holdover chat <&-`
    _talk(session_of())


def test_commands_reset_show_and_exit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(answer_of("a"), answer_of("b"))
    talk(session, "one\n/clear\ntwo\n/stats\n/what now\n/help\n/quit\nthree\n", monkeypatch)
    out = capsys.readouterr().err
    assert [m["content"] for m in session.messages] == ["two", "b"]
    assert "12 of 30 prompt tokens reused" in out
    assert "2.0 KiB kept for reuse" in out
    assert "there is no command /what; /help lists them" in out
    assert "start over (also /reset)" in out


def test_a_message_may_begin_with_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(answer_of("a"))
    talk(session, "/usr/bin holds what?\n", monkeypatch)
    assert session.messages[0]["content"] == "/usr/bin holds what?"


def test_a_request_that_is_refused_leaves_no_trace_and_ends_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of()
    session.engine.refuse = RequestError("messages", "too long; 100 tokens fit")
    with pytest.raises(RequestError, match="100 tokens fit"):
        talk(session, "long\n", monkeypatch)
    assert session.messages == []
    assert capsys.readouterr().err == "", "the command's own handler says it, once"


def test_an_answer_that_is_closed_is_cancelled_and_forgotten() -> None:
    session = session_of([Event(0, "endless", (7,))])
    pieces = session.answer("go")
    assert next(pieces) == "endless"
    pieces.close()
    assert session.engine.cancelled == ["r1"]
    assert session.messages == []


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came() -> None:
    session = session_of([Event(0, "once upon", (7,))], answer_of("the end"))
    pieces = session.answer("go")
    assert next(pieces) == "once upon"
    assert session.stop()
    assert not session.stop(), "asked before"
    assert "".join(pieces) == ""
    assert session.engine.cancelled == ["r1"]
    assert [m["content"] for m in session.messages] == ["go", "once upon"]
    assert session.note.endswith("stopped: the answer so far is kept")
    list(session.answer("and then?"))
    assert session.messages[-1]["content"] == "the end"


def test_an_answer_stopped_before_its_first_word_drops_the_message_and_says_so() -> None:
    session = session_of([])
    pieces = session.answer("go")
    threading.Timer(0.2, session.stop).start()
    assert "".join(pieces) == ""
    assert session.messages == []
    assert session.note == "stopped before the answer began; your message is dropped"


def test_max_tokens_is_cut_to_what_the_context_leaves() -> None:
    session = session_of(answer_of("a"), answer_of("b"), max_tokens=90)
    list(session.answer("x" * 8))
    list(session.answer("x" * 18))  # two messages of one token before it
    assert [params.max_tokens for params in session.engine.asked] == [90, 80]


def test_an_answer_cut_off_says_by_what() -> None:
    def cut(prompt_tokens: int) -> list[Event]:
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=10, cached_tokens=0)
        return [Event(0, "word", (7,), finish_reason="length", usage=usage)]

    session = session_of(cut(50), cut(90), max_tokens=10)
    list(session.answer("x"))
    assert session.note.endswith("cut off by --max-tokens")
    list(session.answer("x"))
    assert session.note.endswith("the context of 100 tokens is full; /clear starts over")


def test_it_says_how_much_was_forgotten() -> None:
    def said(forgotten: int | None) -> str:
        usage = Usage(50, 10, 0, forgotten_tokens=forgotten)
        session = session_of([Event(0, "word", (7,), finish_reason="stop", usage=usage)])
        list(session.answer("x"))
        return session.note

    assert "for 59 tokens, 31 of them forgotten, reused" in said(31)
    assert "forgotten" not in said(0) + said(None)


def test_an_engine_failure_is_an_error_with_its_reason() -> None:
    session = session_of([Event(0, "", (), finish_reason="error", error="out of luck")])
    with pytest.raises(HoldoverError, match="out of luck"):
        list(session.answer("go"))
    assert session.messages == []


def test_window_layers_hold_only_their_window() -> None:
    def held_bytes(n_tokens: int) -> int:
        return LAYOUT.held_bytes(LAYOUT.live_blocks(n_tokens))

    assert held_bytes(0) == 0
    assert held_bytes(16) == 2 * BLOCK_BYTES
    assert held_bytes(1600) == (100 + 2) * BLOCK_BYTES


class Terminal:
    """`holdover chat` on the real model in a pseudo terminal."""

    def __init__(self) -> None:
        self.control, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdover", "chat", "--kv-memory", "32MiB", "--dtype", "fp32",
             "--temperature", "0"],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(theirs), os.O_RDWR)),
        )  # fmt: skip
        os.close(theirs)

    def until(self, pattern: str, timeout_s: float = 120) -> str:
        """What came up to the pattern; it is not looked at again."""
        end_s = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end_s, f"no {pattern!r} in {self.seen!r}"
            self.read()
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def read(self) -> None:
        if select.select([self.control], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):  # it has ended
                self.seen += os.read(self.control, 4096).decode(errors="replace")

    def send(self, text: str) -> None:
        os.write(self.control, text.encode())

    def interrupt(self, done: Callable[[], bool]) -> None:
        """Ctrl-C, as often as a person would: Python forgets one that comes after the prompt is
        printed and before it waits for a key."""
        while not done():
            self.send("\x03")
            end_s = time.monotonic() + 5
            while not done() and time.monotonic() < end_s:
                self.read()


@pytest.mark.slow
def test_what_ctrl_c_does_in_a_terminal() -> None:
    terminal = Terminal()
    try:
        terminal.until(r"Ctrl-D ends\r\n.*> ")
        terminal.send("half typed")
        terminal.until("half typed")
        terminal.interrupt(lambda: "> " in terminal.seen)
        terminal.until("> ")
        terminal.send("Tell me a long story about a fox.\n")
        terminal.until(r"fox\.\r\n.*\w{3}")
        terminal.send("\x03")
        terminal.until(r"the answer so far is kept\]\r\n.*> ")
        terminal.interrupt(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == 0
    finally:
        terminal.process.kill()
        os.close(terminal.control)


@pytest.mark.slow
def test_a_model_without_template_is_refused_before_anything_is_typed() -> None:
    arguments = ["chat", "gemma3-270m", "--kv-memory", "16MiB", "--threads", "1"]
    done = CliRunner().invoke(build_app(), arguments, input="")
    assert done.exit_code == 2
    assert "model: gemma3-270m has no chat template" in done.stderr
