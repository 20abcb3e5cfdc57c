"""Run one response: whole, or as the events of OpenAI's Responses API.

A response that is to be kept is in the store before its client hears that it is complete, so that
the next turn can name it at once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdover.engine.api import Event, FinishReason
from holdover.server.errors import Problem
from holdover.server.generation import Generation
from holdover.server.replies import total_usage
from holdover.server.respond import failure, nobody_there, run_whole, unless_gone
from holdover.server.response_replies import (
    IncompleteDetails,
    OutputMessage,
    OutputText,
    ResponseError,
    ResponseReply,
    ResponseUsage,
)


@dataclass(slots=True)
class Said:
    """The answer, put together from its events."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, event: Event) -> None:
        self.text += event.text
        self.token_ids += event.token_ids
        self.finish_reason = event.finish_reason


Keep = Callable[[ResponseReply, Said], Awaitable[ResponseReply]]
"""Stores the finished response where that was asked for; the reply that the client gets."""


@dataclass(slots=True)
class Run:
    """`begun` is the reply before there is an answer."""

    generation: Generation
    begun: ResponseReply
    keep: Keep
    explains: bool
    said: Said = field(default_factory=Said)

    @property
    def item_id(self) -> str:
        return "msg_" + self.begun.id.removeprefix("resp_")

    def item(self, status: str) -> OutputMessage:
        content = [] if status == "in_progress" else [OutputText(text=self.said.text)]
        return OutputMessage(id=self.item_id, status=status, content=content)

    async def finished(self) -> ResponseReply:
        status = "incomplete" if self.said.finish_reason == "length" else "completed"
        reply = self.begun.model_copy(
            update={
                "status": status,
                "incomplete_details": IncompleteDetails() if status == "incomplete" else None,
                "output": [self.item(status)],
                "usage": ResponseUsage.of(total_usage(self.generation.usages, 1)),
            }
        )
        reply = await self.keep(reply, self.said)
        if self.explains:
            reply = reply.model_copy(update={"holdover": self.generation.explanation()})
        return reply


async def whole(request: Request, run: Run) -> Response:
    if not await run_whole(request, run.generation, run.said.add):
        return nobody_there()
    reply = await run.finished()
    return Response(reply.model_dump_json(), media_type="application/json")


class ResponseStream(Response):
    """Server-sent events, numbered. Cancels the generation when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, run: Run) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]  # of an empty body
        self._run = run
        self._n_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._stream(send))
        finally:
            self._run.generation.cancel()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(send, self._opening())
        async for events in self._run.generation.events():
            problem = next(filter(None, map(failure, events)), None)
            for event in events:
                self._run.said.add(event)
            if problem is not None:
                await self._send(send, [self._failed(problem)], more=False)
                return
            deltas = [self._delta(event.text) for event in events if event.text]
            if deltas:
                await self._send(send, deltas)
        await self._send(send, self._closing(await self._run.finished()), more=False)

    async def _send(self, send: Send, frames: Sequence[bytes], *, more: bool = True) -> None:
        body = b"".join(frames)
        await send({"type": "http.response.body", "body": body, "more_body": more})

    def _opening(self) -> list[bytes]:
        begun = self._run.begun.model_dump(mode="json")
        item = self._run.item("in_progress").model_dump()
        part = OutputText(text="").model_dump()
        return [
            self._frame("response.created", response=begun),
            self._frame("response.in_progress", response=begun),
            self._frame("response.output_item.added", output_index=0, item=item),
            self._part("response.content_part.added", part=part),
        ]

    def _delta(self, text: str) -> bytes:
        return self._part("response.output_text.delta", delta=text, logprobs=[])

    def _closing(self, reply: ResponseReply) -> list[bytes]:
        item = reply.output[0]
        text = self._run.said.text
        return [
            self._part("response.output_text.done", text=text, logprobs=[]),
            self._part("response.content_part.done", part=item.content[0].model_dump()),
            self._frame("response.output_item.done", output_index=0, item=item.model_dump()),
            self._frame(f"response.{reply.status}", response=reply.model_dump(mode="json")),
        ]

    def _failed(self, problem: Problem) -> bytes:
        error = ResponseError(code="server_error", message=problem.message)
        reply = self._run.begun.model_copy(update={"status": "failed", "error": error})
        return self._frame("response.failed", response=reply.model_dump(mode="json"))

    def _part(self, kind: str, **data: Any) -> bytes:
        return self._frame(kind, item_id=self._run.item_id, output_index=0, content_index=0, **data)

    def _frame(self, kind: str, **data: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._n_sent, **data}
        self._n_sent += 1
        text = json.dumps(event, ensure_ascii=False)
        return f"event: {kind}\ndata: {text}\n\n".encode()
