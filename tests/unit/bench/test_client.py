"""What becomes of streams that break, stall, are refused, or speak another dialect."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from holdover.bench.dialect import EventLines
from holdover.bench.load import Target
from holdover.bench.session import BenchError, connect
from holdover.errors import ConfigError

from .faulty import (
    HEAD,
    Answer,
    ask,
    chunk,
    delta,
    response,
    saying,
    server,
    status,
    streaming,
    writing,
)

USAGE = {"prompt_tokens": 10, "completion_tokens": 4}


def said(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    delta = delta if content is None else {"content": content, **delta}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def closing(usage: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": usage or USAGE, **more}


def test_token_counts_come_from_usage_and_else_events_are_counted() -> None:
    [sample] = ask(streaming())
    assert (sample.output_tokens, sample.counted) == (10, False)
    assert (sample.prompt_tokens, sample.cached_tokens) == (10, 3)
    [sample] = ask(streaming(usage=False))
    assert (sample.output_tokens, sample.counted, sample.prompt_tokens) == (5, True, None)


def test_several_tokens_in_an_event_are_as_many_as_usage_says() -> None:
    """Half the events of tokens: the time per token is half the time between events."""
    [sample] = ask(streaming(gap_s=0.02))
    assert (sample.events, sample.output_tokens) == (5, 10)
    assert sample.per_token_s == pytest.approx(sum(sample.gaps_s) / 9)


def test_a_slow_start_is_time_to_the_first_token_and_no_error() -> None:
    [sample] = ask(streaming(first_s=0.4), timeout_s=0.8)
    assert sample.error is None
    assert 0.39 <= (sample.ttft_s or 0) < 0.8
    assert (sample.ttft_s or 0) <= sample.total_s


@pytest.mark.parametrize("code", [429, 500, 503])
def test_http_errors_are_samples_with_the_servers_message(code: int) -> None:
    [sample] = ask(status(code, "too busy"))
    assert (sample.error, sample.error_detail) == (f"HTTP {code}", "too busy")
    assert (sample.ttft_s, sample.output_tokens, sample.tries) == (None, 0, 1)


@pytest.mark.parametrize("as_date", [False, True])
def test_a_busy_server_is_asked_again_when_it_says(as_date: bool) -> None:
    times_s: list[float] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        times_s.append(time.perf_counter())
        if len(times_s) == 1:
            later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
            value = later if as_date else "0.3"
            writer.write(response(429, '{"error": "busy"}', f"Retry-After: {value}"))
        else:
            await streaming()(body, writer)

    [sample] = ask(answer, retries=2)
    waited_s = times_s[1] - times_s[0]
    assert waited_s >= (0.9 if as_date else 0.3)  # a date has whole seconds
    assert (sample.error, sample.tries, len(times_s)) == (None, 2, 2)
    assert (sample.ttft_s or 0) >= waited_s  # its user has waited since the first try
    assert sample.total_s >= waited_s


def test_a_server_that_stays_busy_is_an_error_after_its_tries() -> None:
    asked: list[int] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        writer.write(response(503, "loading", "Retry-After: 0"))

    [sample] = ask(answer, retries=2)
    assert (sample.error, sample.error_detail, sample.tries) == ("HTTP 503", "loading", 3)
    assert (sum(asked), sample.retry_after_s) == (3, 0.0)


def test_other_errors_are_not_tried_again() -> None:
    [sample] = ask(status(500, "odd"), retries=3)
    assert (sample.error, sample.tries) == ("HTTP 500", 1)


def test_a_stream_that_breaks_off_is_an_error() -> None:
    [sample] = ask(streaming(stop_after=2))
    assert sample.error == "broken stream"


def test_a_stream_that_ends_politely_but_early_is_broken_too() -> None:
    [sample] = ask(writing(b'data: {"choices": [{"delta": {"content": "half an ans"}}]}\n\n'))
    assert sample.error == "broken stream"
    assert "finish_reason" in sample.error_detail


def test_what_is_no_json_or_no_http_is_broken() -> None:
    [sample] = ask(writing(b"data: {nonsense}\n\n"))
    assert sample.error == "broken stream"

    async def garbage(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")

    [sample] = ask(garbage)
    assert sample.error == "broken stream"

    async def nothing(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        return

    [sample] = ask(nothing)
    assert sample.error == "broken stream"
    assert "without an answer" in sample.error_detail


def test_silence_longer_than_the_timeout_is_an_error() -> None:
    [sample] = ask(streaming(first_s=1), timeout_s=0.1)
    assert (sample.error, sample.error_detail) == ("timeout", "silent for 0.1 s")


def test_a_stream_that_goes_on_slowly_is_not_silent() -> None:
    [sample] = ask(streaming(gap_s=0.1), timeout_s=0.3)
    assert sample.error is None
    assert sample.total_s > 0.39


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again() -> None:
    """Kept open by the answer's headers, closed before the next request."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"connection: close\r\n", b""))
        writer.write(delta("x") + delta("", "stop") + chunk("[DONE]") + b"0\r\n\r\n")

    samples = ask(answer, requests=4)
    assert [sample.error for sample in samples] == [None] * 4


@pytest.mark.parametrize("pieces", [1, 7, 40])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_found_however_bytes_are_cut(pieces: int, newline: bytes) -> None:
    lines = [
        b": keep-alive", b"", b"event: message", b"data:" + json.dumps(said("h\u00e9")).encode(),
        b"", b"data: " + json.dumps(said("llo", "stop")).encode(), b"", b"data: [DONE]",
    ]  # fmt: skip
    [sample] = ask(writing(newline.join(lines), pieces))
    assert (sample.error, sample.text, sample.events) == (None, "h\u00e9llo", 2)


def test_nothing_counts_after_done() -> None:
    found = EventLines()
    assert list(found.feed(b'data: [DONE]\n\ndata: {"error": "late"}\n\n')) == []


@pytest.mark.parametrize(
    ("events", "text", "reasoning", "prompt", "cached", "output"),
    [
        pytest.param(  # the role and an empty text come first, usage last
            [said("", role="assistant"), said("a"), said("b", "length"),
             closing(USAGE | {"prompt_tokens_details": None})],
            "ab", "", 10, None, 4, id="vllm",
        ),
        pytest.param(  # both names of one text
            [said(role="assistant", content=""), said(reasoning="hm", reasoning_content="hm"),
             said("a", "stop"), closing(USAGE | {"prompt_tokens_details": {"cached_tokens": 8}})],
            "a", "hm", 10, 8, 4, id="vllm-reasoning",
        ),
        pytest.param(
            [said(role="assistant", content="", reasoning_content=None),
             said(content=None, reasoning_content="hm"), said("a", reasoning_content=None),
             said("", "stop"), closing(USAGE | {"prompt_tokens_details": {"cached_tokens": 3}})],
            "a", "hm", 10, 3, 4, id="sglang",
        ),
        pytest.param(  # null first, timings beside usage
            [said(role="assistant", content=None), said("a"), said("b"), said(finish="length"),
             closing(USAGE, timings={"cache_n": 6, "prompt_n": 4, "predicted_n": 4})],
            "ab", "", 10, 6, 4, id="llama.cpp",
        ),
        pytest.param(  # no usage at all
            [said("a"), said("b"),
             said(finish="stop") | {"timings": {"cache_n": 6, "prompt_n": 4, "predicted_n": 4}}],
            "ab", "", 10, 6, 4, id="llama.cpp-old",
        ),
        pytest.param(  # a role in every event, reasoning under its short name
            [said("", role="assistant", reasoning="h"), said("", role="assistant", reasoning="m"),
             said("a", role="assistant"), said("", "stop", role="assistant"), closing()],
            "a", "hm", 10, None, 4, id="ollama",
        ),
        pytest.param(
            [said("a", "stop"), closing(USAGE | {"prompt_cache_hit_tokens": 9})],
            "a", "", 10, 9, 4, id="deepseek",
        ),
        pytest.param(  # usage so far in each event
            [said("a") | {"usage": {"prompt_tokens": 10, "completion_tokens": 1}},
             said("b", "stop") | {"usage": USAGE}, {"choices": [], "usage": None}],
            "ab", "", 10, None, 4, id="continuous-usage",
        ),
    ],
)  # fmt: skip
def test_dialects(
    events: list[dict[str, Any]], text: str, reasoning: str, prompt: int, cached: int | None,
    output: int,
) -> None:  # fmt: skip
    [sample] = ask(saying(*events))
    assert sample.error is None
    assert (sample.text, sample.reasoning) == (text, reasoning)
    assert (sample.prompt_tokens, sample.cached_tokens) == (prompt, cached)
    assert (sample.output_tokens, sample.counted) == (output, False)
    assert (sample.ttft_s or 0) <= (sample.content_s or 0)


def test_a_first_event_without_text_is_no_first_token() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(said("", role="assistant")))
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.write(chunk(said(reasoning="hm")))
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.write(chunk(said("a", "stop")) + chunk("[DONE]") + b"0\r\n\r\n")

    [sample] = ask(answer)
    assert 0.19 <= (sample.ttft_s or 0) < 0.39  # reasoning is output
    assert (sample.content_s or 0) >= 0.39


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"error": {"message": "arena full", "code": 500}}\n\n',
        b'data: {"object": "error", "message": "arena full"}\n\n',
        b'error: {"code": 500, "message": "arena full"}\n\n',
        b'data: {"error": "arena full"}\n\n',
    ],
)
def test_an_error_in_the_stream_is_its_message(raw: bytes) -> None:
    [sample] = ask(writing(chunk(said("a"))[4:-2] + raw + b"data: [DONE]\n\n"))
    assert (sample.error, sample.error_detail) == ("error event", "arena full")


def open_session(answer: Answer, models: bytes | None = None, **target: Any) -> None:
    async def main() -> None:
        async with server(answer, models) as url, connect(Target(url, **target)):
            pass

    asyncio.run(main())


def test_a_refused_connection_is_one_clear_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        async def main() -> None:
            async with connect(Target(url)):
                pass

        with pytest.raises(BenchError, match=f"nothing answers at {url}"):
            asyncio.run(main())


@pytest.mark.parametrize(
    ("models", "hint"),
    [
        (response(401, "{}"), "--api-key"),
        (response(404, "{}"), "--model"),
        (response(200, "<html>"), "--model"),
        (response(200, '{"data": []}'), "--model"),
        (b"no http\r\n\r\n", "broken stream"),
    ],
)
def test_a_server_without_a_model_list_says_which_flag_helps(models: bytes, hint: str) -> None:
    with pytest.raises(BenchError, match=hint):
        open_session(streaming(), models)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_timeout_that_cannot_work_names_its_flag(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="--timeout-s"):
        Target(timeout_s=timeout_s)


@pytest.mark.parametrize("url", ["h:1", "http://", "http://h:99999", "http://h:x", "http://h h"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Target(url)


def test_a_key_that_no_header_carries_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="--api-key") as found:
        Target(api_key="s3cret\n")
    assert "s3cret" not in str(found.value)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_may_be_written_with_or_without_v1(url: str) -> None:
    assert Target(url).base_url == "http://h:1/v1"
