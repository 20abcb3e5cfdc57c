"""The load client against a small server of known delays and known faults."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from holdover.bench.load import Load, Target
from holdover.bench.prompts import prompt_text
from holdover.bench.report import bench_json, bench_lines
from holdover.bench.run import BenchError, Run, run_load
from holdover.bench.spread import percentile
from holdover.errors import ConfigError

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Any]


@asynccontextmanager
async def server(answer: Answer, models: bytes | None = None) -> AsyncIterator[str]:
    """Serves /v1/models, and `answer` for every POST; one request per connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            writer.write(models or response(200, json.dumps({"data": [{"id": "fake"}]})))
        else:
            length = next(
                int(line.split(":")[1])
                for line in head.lower().splitlines()
                if line.startswith("content-length")
            )
            await answer(json.loads(await reader.readexactly(length)), writer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def response(status: int, body: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return (head + body).encode()


def chunk(event: dict[str, Any] | str) -> bytes:
    text = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


def delta(content: str, finish: str | None = None) -> bytes:
    return chunk({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


def streaming(
    first_s: float = 0.0, gap_s: float = 0.0, usage: bool = True, stop_after: int | None = None
) -> Answer:
    """An answer of max_tokens pieces; `stop_after` closes the connection in the middle."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        writer.write(delta(""))  # the role comes first and is no token
        await asyncio.sleep(first_s)
        for index in range(body["max_tokens"]):
            if index == stop_after:
                return
            await asyncio.sleep(gap_s if index else 0)
            writer.write(delta("x "))
            await writer.drain()
        writer.write(delta("", "length"))
        if usage:
            details = {"cached_tokens": 3}
            counts = {"prompt_tokens": 10, "completion_tokens": 2 * body["max_tokens"]}
            writer.write(
                chunk({"choices": [], "usage": counts | {"prompt_tokens_details": details}})
            )
        writer.write(chunk("[DONE]") + b"0\r\n\r\n")

    return answer


def status(code: int, message: str) -> Answer:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(response(code, json.dumps({"error": {"message": message}})))

    return answer


def measure(
    answer: Answer, models: bytes | None = None, timeout_s: float = 300, **load: Any
) -> Run:
    async def main() -> Run:
        async with server(answer, models) as url:
            return await run_load(Load(Target(url, timeout_s=timeout_s), **load))

    return asyncio.run(main())


def test_ttft_and_inter_token_times_are_the_servers() -> None:
    """Compared with when the server really wrote, which is late on a busy machine."""
    writes_s: list[list[float]] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        times_s = [time.perf_counter()]
        writes_s.append(times_s)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        for index in range(body["max_tokens"]):
            await asyncio.sleep(0.03 if index else 0.15)
            times_s.append(time.perf_counter())
            writer.write(delta("x "))
            await writer.drain()
        writer.write(delta("", "length") + chunk("[DONE]") + b"0\r\n\r\n")

    report = bench_json(measure(answer, streams=3, requests=9, output_tokens=8))
    assert report["finished"] == 9
    first_ms = percentile([1000 * (times[1] - times[0]) for times in writes_s], 50)
    gap_ms = percentile([1000 * (b - a) for t in writes_s for a, b in pairwise(t[1:])], 50)
    assert first_ms is not None
    assert first_ms >= 150
    assert -1 < report["ttft_ms"]["p50"] - first_ms < 50  # connecting is part of TTFT
    assert report["inter_token_ms"]["p50"] == pytest.approx(gap_ms, abs=3)
    assert report["output_tokens_per_s"] == pytest.approx(9 * 8 / report["wall_s"])
    assert report["wall_s"] >= 3 * (0.15 + 7 * 0.03)  # three rounds of three at once


def test_token_counts_come_from_usage_and_else_are_said_to_be_counted() -> None:
    report = bench_json(measure(streaming(), requests=2, output_tokens=5))
    assert (report["output_tokens"], report["token_counts"]) == (20, "usage")
    assert (report["prompt_tokens"], report["cached_tokens"]) == (20, 6)
    report = bench_json(measure(streaming(usage=False), requests=2, output_tokens=5))
    assert (report["output_tokens"], report["token_counts"]) == (10, "chunks")
    assert any("no usage given" in line for line in bench_lines(report))


@pytest.mark.parametrize("code", [429, 500])
def test_http_errors_are_counted_with_the_servers_message(code: int) -> None:
    report = bench_json(measure(status(code, "too busy"), requests=3))
    assert report["errors"] == {f"HTTP {code}": 3}
    assert report["error_examples"] == {f"HTTP {code}": "too busy"}
    assert report["finished"] == 0
    assert report["ttft_ms"] == {"p50": None, "p95": None}
    assert f"3 x HTTP {code}: too busy" in "\n".join(bench_lines(report))


def test_a_stream_that_breaks_off_is_an_error_and_is_not_measured() -> None:
    report = bench_json(measure(streaming(stop_after=2), requests=2, output_tokens=5))
    assert report["errors"] == {"broken stream": 2}
    assert report["output_tokens"] == 0


def test_a_stream_that_ends_politely_but_early_is_broken_too() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        writer.write(delta("half an ans") + b"0\r\n\r\n")

    report = bench_json(measure(answer, requests=1))
    assert report["errors"] == {"broken stream": 1}
    assert "finish_reason" in report["error_examples"]["broken stream"]


def test_an_error_in_the_stream_is_counted() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        writer.write(chunk({"error": {"message": "arena full"}}) + chunk("[DONE]") + b"0\r\n\r\n")

    assert bench_json(measure(answer, requests=1))["error_examples"] == {
        "error event": "arena full"
    }


def test_silence_longer_than_the_timeout_is_an_error() -> None:
    report = bench_json(measure(streaming(first_s=1), requests=1, timeout_s=0.1))
    assert report["errors"] == {"timeout": 1}


def test_good_and_bad_requests_are_told_apart() -> None:
    seen: list[int] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        chosen = streaming() if len(seen) % 2 else status(500, "odd")
        await chosen(body, writer)

    report = bench_json(measure(answer, requests=6, streams=2))
    assert (report["finished"], report["errors"]) == (3, {"HTTP 500": 3})


def test_a_refused_connection_is_one_clear_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(BenchError, match=f"nothing answers at {url}"):
            asyncio.run(run_load(Load(Target(url))))


@pytest.mark.parametrize(
    ("models", "hint"),
    [
        (response(401, "{}"), "--api-key"),
        (response(404, "{}"), "--model"),
        (response(200, "<html>"), "--model"),
        (response(200, '{"data": []}'), "--model"),
    ],
)
def test_a_server_without_a_model_list_says_which_flag_helps(models: bytes, hint: str) -> None:
    with pytest.raises(BenchError, match=hint):
        measure(streaming(), models)


def test_requests_are_deterministic_and_distinct() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        await streaming()(body, writer)

    measure(answer, requests=3, streams=1, input_words=20, output_tokens=4, seed=7)
    texts = [body["messages"][0]["content"] for body in bodies]
    assert texts == [prompt_text(7, index, 20) for index in range(3)]
    assert len({text[:20] for text in texts}) == 3
    assert all(len(text.split()) == 20 for text in texts)
    assert {body["max_tokens"] for body in bodies} == {4}
    assert {body["model"] for body in bodies} == {"fake"}


@pytest.mark.parametrize("field", ["streams", "requests", "input_words", "output_tokens"])
def test_zero_of_anything_names_its_flag(field: str) -> None:
    with pytest.raises(ConfigError, match="--" + field.replace("_", "-")):
        Load(**{field: 0})


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_timeout_that_cannot_work_names_its_flag(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="--timeout-s"):
        Target(timeout_s=timeout_s)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_may_be_written_with_or_without_v1(url: str) -> None:
    assert Target(url).base_url == "http://h:1/v1"


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([0.0, 100.0], 95) == 95.0
