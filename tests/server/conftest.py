"""A real uvicorn on a free port, over a scripted engine or a real one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from holdover.config import Config
from holdover.server.app import create_app
from holdover.server.archive import Archive
from holdover.server.run import HoldoverServer, bind

from .scripted import CONTEXT_TOKENS, ByteTokenizer, ScriptedEngine

MODEL = "acme/scripted"


@dataclass(frozen=True)
class Live:
    """A server that is up."""

    url: str
    engine: Any
    tokenizer: Any
    server: HoldoverServer
    http: httpx.Client
    model: str = MODEL

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=30)

    def async_client(self, api_key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=60
        )

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.http.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


@contextlib.contextmanager
def live(
    engine: Any,
    tokenizer: Any,
    config: Config,
    model: str = MODEL,
    max_context_tokens: int = CONTEXT_TOKENS,
    archive: Archive | None = None,
) -> Iterator[Live]:
    app = create_app(engine, tokenizer, config, model, max_context_tokens, archive)
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = HoldoverServer(app, app.state.drain, engine, config, ready.set)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    assert ready.wait(10)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        # no TLS here, and reading the certificates of this machine takes a third of a second
        with httpx.Client(base_url=url, timeout=30, verify=False) as http:
            yield Live(url, engine, tokenizer, server, http, model)
    finally:
        server.begin_drain()
        thread.join(15)
        assert not thread.is_alive()


Start = Callable[..., Live]


@pytest.fixture(scope="session")
def serving() -> Callable[..., contextlib.AbstractContextManager[Live]]:
    """`with serving(engine, tokenizer, config, model, max_context_tokens, archive) as server:`"""
    return live


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(answer=..., step_s=..., api_keys=..., grace_s=...)` gives a scripted server."""
    with contextlib.ExitStack() as stack:

        def begin(
            answer: Callable[[str], bytes] = lambda prompt: b"ok",
            step_s: float = 0.0,
            **config: Any,
        ) -> Live:
            engine = ScriptedEngine(answer, step_s)
            stack.callback(engine.shutdown, 0.0)
            settings = Config(**{"grace_s": 0.2, **config})
            return stack.enter_context(live(engine, ByteTokenizer(), settings))

        yield begin


@pytest.fixture(scope="module")
def plain() -> Iterator[Live]:
    """One server for all tests that leave nothing behind; answers any prompt with its text."""
    engine = ScriptedEngine(lambda prompt: prompt.encode()[-64:])
    with live(engine, ByteTokenizer(), Config(grace_s=0.2)) as server:
        yield server
    engine.shutdown(0.0)


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture
def soon() -> Callable[..., bool]:
    """`assert soon(condition)` waits up to 5 s for it."""
    return eventually
