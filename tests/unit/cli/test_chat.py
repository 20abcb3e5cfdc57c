"""The terminal chat against a scripted engine: what it sends, prints and cleans up."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdover.cli.chat import ChatSession, _talk
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
    cancelled: list[str] = field(default_factory=list)
    refuse: RequestError | None = None

    def submit(
        self, prompt: tuple[int, ...], params: SamplingParams, on_event: Callable[[Event], None],
        **more: Any,
    ) -> str:  # fmt: skip
        if self.refuse is not None:
            raise self.refuse
        self.prompts.append(prompt)
        events = self.scripts.pop(0)
        threading.Thread(target=lambda: [on_event(event) for event in events]).start()
        return f"r{len(self.prompts)}"

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

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


def session_of(*scripts: list[Event], system: str | None = None) -> ChatSession:
    return ChatSession(
        ScriptedEngine(list(scripts)), WordTokenizer(), LAYOUT, SamplingParams(), system
    )


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
    out = capsys.readouterr().out
    assert "Hello" in out
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
    talk(session, "one\n/reset\ntwo\n/stats\n/what\n/exit\nthree\n", monkeypatch)
    out = capsys.readouterr().out
    assert [m["content"] for m in session.messages] == ["two", "b"]
    assert "12 of 30 prompt tokens reused" in out
    assert "2.0 KiB kept for reuse" in out
    assert "/exit ends" in out


def test_a_request_that_is_refused_leaves_no_trace_and_ends_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = session_of()
    session.engine.refuse = RequestError("messages", "too long; 100 tokens fit")
    with pytest.raises(RequestError, match="100 tokens fit"):
        talk(session, "long\n", monkeypatch)
    assert session.messages == []


def test_an_answer_that_is_stopped_is_cancelled_and_forgotten() -> None:
    session = session_of([Event(0, "endless", (7,))])
    pieces = session.answer("go")
    assert next(pieces) == "endless"
    pieces.close()
    assert session.engine.cancelled == ["r1"]
    assert session.messages == []


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
