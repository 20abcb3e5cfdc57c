"""A small server of known faults, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdover.bench.client import Sample
from holdover.bench.load import Target
from holdover.bench.session import Asker, connect

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
END = b"0\r\n\r\n"
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


def response(status: int, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


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
        writer.write(HEAD)
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
        writer.write(chunk("[DONE]") + END)

    return answer


def status(code: int, message: str) -> Answer:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(response(code, json.dumps({"error": {"message": message}})))

    return answer


def saying(*events: dict[str, Any] | str) -> Answer:
    """These events, then [DONE]."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"".join(map(chunk, events)) + chunk("[DONE]") + END)

    return answer


def writing(raw: bytes, pieces: int = 1) -> Answer:
    """These bytes as the body, cut into pieces anywhere."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        size = -(-len(raw) // pieces)
        for start in range(0, len(raw), size):
            part = raw[start : start + size]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(END)

    return answer


def ask(answer: Answer, requests: int = 1, output_tokens: int = 5, **target: Any) -> list[Sample]:
    """One request after the other."""

    async def main() -> Sequence[Sample]:
        async with server(answer) as url, connect(Target(url, **target)) as session:
            asker = Asker(session, "test", 0)
            for number in range(requests):
                await asker.ask(asker.messages(number, 4), output_tokens)
            return [each.sample for each in asker.asked]

    return list(asyncio.run(main()))
