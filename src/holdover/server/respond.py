"""Run a job and send its answers, whole or as server-sent events, until done or nobody listens.

The endpoints differ only in a `Writer`, which words events for their clients.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdover.engine.api import NOT_FINITE, SHUTTING_DOWN, Event
from holdover.server.errors import ApiError, Problem
from holdover.server.generation import Answer, Generation
from holdover.server.replies import Usage, total_usage

_log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
_MARK = "\0"  # stands for the text while a chunk is taken apart around it


class Writer(Protocol):
    """How one endpoint words its answers."""

    def pieces(self, event: Event) -> Sequence[BaseModel]:
        """The chunks for one event; called in order, may keep state for each answer."""

    def only_text(self, event: Event) -> bool:
        """Whether all that `pieces` would give for an event is `text_piece` of its text."""

    def text_piece(self, index: int, text: str) -> BaseModel: ...

    def usage(self, usage: Usage) -> BaseModel:
        """The chunk that closes a stream for which include_usage was asked."""

    def whole(self, answers: Sequence[Answer], usage: Usage) -> BaseModel: ...


async def whole_response(
    request: Request, generation: Generation, writer: Writer, n: int, *, explains: bool = False
) -> Response:
    """All answers in one JSON document. `n` answers belong to each prompt."""
    answers = [Answer() for _ in generation.usages]
    if not await run_whole(request, generation, lambda event: answers[event.index].add(event)):
        return nobody_there()
    body = writer.whole(answers, total_usage(generation.usages, n))
    if explains:
        body = body.model_copy(update={"holdover": generation.explanation()})
    text = body.model_dump_json(exclude=None if explains else {"holdover"})
    return Response(text, media_type="application/json")


async def run_whole(
    request: Request, generation: Generation, take: Callable[[Event], None]
) -> bool:
    """Hand over every event to the last; False when the client left first. Raises ApiError."""

    async def gather() -> None:
        async for events in generation.events():
            for event in events:
                if problem := failure(event):
                    raise ApiError(problem)
                take(event)

    try:
        return await unless_gone(request.receive, gather())
    finally:
        generation.cancel()


def nobody_there() -> Response:
    """What is logged of a request whose client has left."""
    return Response(status_code=499)


class EventStream(Response):
    """Answers as server-sent events. Cancels the generation when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        writer: Writer,
        n: int,
        *,
        include_usage: bool,
        explains: bool = False,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._n = n
        self._include_usage = include_usage
        self._explains = explains
        self._around_text: dict[int, tuple[bytes, bytes]] = {}  # for each answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._stream(send))
        finally:
            self._generation.cancel()

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for events in self._generation.events():
            problem = next(filter(None, map(failure, events)), None)
            frames = [self._frames(event) for event in events[:-1]]
            frames.append(self._last_frames(events[-1]))
            data = b"".join(frames)
            if problem is not None:
                data += b"data: " + problem.json().encode() + b"\n\n"
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if problem is not None:
                break
        else:
            if self._include_usage:
                usage = total_usage(self._generation.usages, self._n)
                data = self._frame(self._explained(self._writer.usage(usage)))
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    def _frames(self, event: Event) -> bytes:
        """Most events grow the text and no more: of their chunks nothing else is written anew."""
        index = event.index
        if not self._writer.only_text(event):
            return b"".join(map(self._frame, self._writer.pieces(event)))
        around = self._around_text.get(index)
        if around is None:
            frame = self._frame(self._writer.text_piece(index, _MARK))
            before, _, after = frame.rpartition(_as_json(_MARK))
            around = self._around_text[index] = (before, after)
        return _as_json(event.text).join(around)

    def _last_frames(self, event: Event) -> bytes:
        """Of a batch; what ends the last answer may carry the explanation."""
        if not self._explains or self._include_usage or self._generation.is_open:
            return self._frames(event)
        *pieces, last = self._writer.pieces(event)
        return b"".join(map(self._frame, [*pieces, self._explained(last)]))

    def _explained(self, piece: BaseModel) -> BaseModel:
        if not self._explains:
            return piece
        return piece.model_copy(update={"holdover": self._generation.explanation()})

    def _frame(self, piece: BaseModel) -> bytes:
        # with include_usage every chunk has the field, null but for the last one
        exclude = set() if self._include_usage else {"usage"}
        if getattr(piece, "holdover", None) is None:
            exclude.add("holdover")
        return b"data: " + piece.model_dump_json(exclude=exclude).encode() + b"\n\n"


def _as_json(text: str) -> bytes:
    """As pydantic writes it."""
    return json.dumps(text, ensure_ascii=False).encode()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, or stop it as soon as the client has closed the connection (False)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for job in (task, watch):
            job.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def failure(event: Event) -> Problem | None:
    """The error to send instead of an answer that did not end by itself."""
    if event.finish_reason == "cancelled":
        return Problem(503, "the server is shutting down", None, SHUTTING_DOWN)
    if event.finish_reason == "error":
        _log.error("the engine failed on a request: %s", event.error)
        if event.error == NOT_FINITE:
            return Problem(500, f"{NOT_FINITE} on this request", None, "not_finite")
        text = "the engine failed on this request; the server's log has the cause"
        return Problem(500, text, None, "engine_error")
    return None
