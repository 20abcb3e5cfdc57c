"""`python stamping_server.py`: a process that streams at known times and says when it really wrote.

The clock is the machine's monotonic one, which the client in another process reads too. The first
piece of an answer is "RECEIVED SENT ", each later one "SENT ": the seconds at which the request had
come and the piece was written. Fields of the request: `first_s` and `gap_s` are the delays; with
`together` all streams write at the same ticks, as an engine does that computes a token for each of
them in a step.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(event: dict[str, Any] | str) -> bytes:
    text = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


def delta(content: str, finish: str | None = None) -> bytes:
    return chunk({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


class Stream(asyncio.Protocol):
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.got = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self.got += data
        head, separator, body = self.got.partition(b"\r\n\r\n")
        if not separator:
            return
        if head.startswith(b"GET"):
            self.got = b""
            listed = b'{"data": [{"id": "stamping"}]}'
            answer = f"HTTP/1.1 200 OK\r\ncontent-length: {len(listed)}\r\n\r\n".encode() + listed
            self.transport.write(answer if head.startswith(b"GET /v1/models") else missing())
            return
        names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(names[b"content-length"]):
            return
        self.got = b""
        asked = json.loads(body)
        self.transport.write(HEAD + delta(""))  # the role comes first and is no token
        self.begin(asked, now_s)

    def begin(self, asked: dict[str, Any], now_s: float) -> None:
        gap_s, left = asked["gap_s"], asked["max_tokens"]
        first_s = now_s + asked["first_s"]
        if asked.get("together"):
            first_s = math.ceil(first_s / gap_s) * gap_s
        offset_s = self.loop.time() - now_s

        def write(number: int) -> None:
            sent_s = time.perf_counter()
            begun = f"{now_s!r} " if number == 0 else ""
            self.transport.write(delta(f"{begun}{sent_s!r} "))
            if number + 1 < left:
                due_s = first_s + (number + 1) * gap_s
                self.loop.call_at(due_s + offset_s, write, number + 1)
            else:
                usage = {"prompt_tokens": 1, "completion_tokens": left}
                ends = delta("", "length") + chunk({"choices": [], "usage": usage})
                self.transport.write(ends + chunk("[DONE]") + b"0\r\n\r\n")

        self.loop.call_at(first_s + offset_s, write, 0)


def missing() -> bytes:
    return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Stream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until it is closed
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
