"""Run the application on uvicorn, and end it well.

First SIGTERM or SIGINT: new requests get 503 (the port stays open, so that a load balancer reads
"shutting down" and not "broken"), running ones have `grace_s` to finish, then the process ends
normally. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from holdover.config import Config
from holdover.engine.api import EngineLike
from holdover.errors import ConfigError
from holdover.server.app import create_app
from holdover.server.context import Drain
from holdover.server.limits import MAX_IDLE_S, SPARE_CONNECTIONS
from holdover.server.tokens import TokenizerLike

_LAST_WORDS_S = 1.0
"""For the error message of a stream that the grace time did not let finish."""


def serve(
    engine: EngineLike,
    tokenizer: TokenizerLike,
    config: Config,
    listener: socket.socket,
    *,
    model_name: str,
    max_context_tokens: int,
    on_ready: Callable[[str], None] = print,
    on_drain: Callable[[int], None] = lambda running: None,
) -> None:
    """Serve on a socket from `bind` until a signal comes; then shut the engine down and return.

    `on_ready` gets the URL once requests are answered, `on_drain` the number of requests that a
    first signal finds running.
    """
    app = create_app(engine, tokenizer, config, model_name, max_context_tokens)
    server = HoldoverServer(
        app, app.state.drain, engine, config, lambda: on_ready(_url(listener)), on_drain
    )
    try:
        server.run(sockets=[listener])
    finally:
        server.stop_engine(0.0)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, so that a bad address is known before anything is loaded.

    Nobody can connect until `serve` has it. Raises ConfigError when the address cannot be had.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(
            "--host", f"{host!r} is not an address of this machine: {error.strerror}"
        ) from error
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except PermissionError as error:
        sock.close()
        raise ConfigError("--port", f"{port} is reserved; use one from 1024 on") from error
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL:
            text = f"{host} is not an address of this machine; 0.0.0.0 listens on all of them"
            raise ConfigError("--host", text) from error
        text = f"cannot listen on {host}:{port}: {error.strerror}; --port 0 takes a free port"
        raise ConfigError("--port", text) from error
    return sock


class HoldoverServer(uvicorn.Server):
    """uvicorn with an end in two steps: drain, then exit with code 0."""

    def __init__(
        self,
        app: Callable[..., object],
        drain: Drain,
        engine: EngineLike,
        config: Config,
        on_ready: Callable[[], None],
        on_drain: Callable[[int], None] = lambda running: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                http="h11",  # the one whose connections are understood here
                timeout_keep_alive=MAX_IDLE_S,
                timeout_graceful_shutdown=int(_LAST_WORDS_S),
                # More cannot be served; each holds a socket, and the body it sends.
                limit_concurrency=config.max_sequences
                + config.max_waiting_requests
                + SPARE_CONNECTIONS,
                h11_max_incomplete_event_size=16 << 10,  # of a request's head
            )
        )
        self._drain = drain
        self._engine = engine
        self._grace_s = config.grace_s
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._engine_lock = threading.Lock()
        self._engine_stopped = False
        self._idle_since_s: dict[object, float] = {}

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second. Once a second, end connections that send no request.

        uvicorn has a time limit between requests, but none for a head that comes byte by byte.
        """
        if counter % 10 == 0:
            now_s = time.monotonic()
            idle = [c for c in self.server_state.connections if _is_idle(c)]
            self._idle_since_s = {c: self._idle_since_s.get(c, now_s) for c in idle}
            for connection, since_s in self._idle_since_s.items():
                if now_s - since_s > MAX_IDLE_S:
                    _abort(connection)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        if self._drain.draining:  # a signal came during start-up
            self._begin()
        else:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours instead of uvicorn's, which would end the process by the signal and not with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._on_signal) for number in ours}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._drain.draining:
            os._exit(128 + number)
        self.begin_drain()

    def begin_drain(self) -> None:
        """Start the end. From any thread; returns at once."""
        self._drain.draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._ending is None:
            if self._drain.active:
                self._on_drain(self._drain.active)
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            if not await self._drain.idle(self._grace_s):
                await asyncio.to_thread(self.stop_engine, 0.0)  # cancels what still runs
                if not await self._drain.idle(_LAST_WORDS_S):
                    self._hang_up()
                    await self._drain.idle(_LAST_WORDS_S)
        finally:
            self.should_exit = True

    def _hang_up(self) -> None:
        """Drop clients that do not read their answers, so that their handlers end by themselves."""
        for connection in list(self.server_state.connections):
            _abort(connection)

    def stop_engine(self, grace_s: float) -> None:
        """Shut the engine down, once."""
        with self._engine_lock:
            if not self._engine_stopped:
                self._engine_stopped = True
                self._engine.shutdown(grace_s)


def _is_idle(connection: object) -> bool:
    """Whether no request is being answered on it."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or cycle.response_complete


def _abort(connection: object) -> None:
    transport = getattr(connection, "transport", None)
    if transport is not None:
        transport.abort()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
