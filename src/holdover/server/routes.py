"""The generating endpoints: check, render, tokenize, submit, answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from holdover.engine.api import SHUTTING_DOWN
from holdover.errors import RequestError
from holdover.server.context import Context
from holdover.server.errors import ApiError, Problem, from_request_error
from holdover.server.explain import Origin
from holdover.server.generation import Generation, Job
from holdover.server.limits import DEFAULT_COMPLETION_TOKENS, INLINE_CHARS, MAX_BODY_S
from holdover.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, Message
from holdover.server.respond import EventStream, Writer, whole_response
from holdover.server.turns import Change, State
from holdover.server.writers import ChatWriter, CompletionWriter, Head

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)


def generation_routes(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=schema_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        started_s = time.perf_counter()
        asked = await read(request, ChatRequest)
        check_model(context, asked.model)
        try:
            params = asked.sampling()
            n, tenant = asked.n or 1, request.state.tenant
            generate = asked.add_generation_prompt is not False
            limit = context.max_context_tokens
            prompt = await encode_messages(context, asked.messages, generate, tenant, limit)
            head = _head(context, request, "chatcmpl")
            change = recall(context, tenant, [message.rendered() for message in asked.messages])
            writer = ChatWriter(head, context.tokenizer, bool(asked.logprobs))
            job = Job(head["id"], (prompt,), params, n, tenant, started_s, Origin(change))
            return await _answer(context, request, asked, job, writer)
        except RequestError as error:
            raise ApiError(from_request_error(error, asked.renamed)) from error

    @router.post("/v1/completions", openapi_extra=schema_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        started_s = time.perf_counter()
        asked = await read(request, CompletionRequest)
        check_model(context, asked.model)
        params = asked.sampling()
        prompts = await _encode_prompts(context, asked)
        room = context.max_context_tokens - max(map(len, prompts))
        if params.max_tokens is None and room > 0:
            params = replace(params, max_tokens=min(DEFAULT_COMPLETION_TOKENS, room))
        n, tenant = asked.n or 1, request.state.tenant
        head = _head(context, request, "cmpl")
        writer = CompletionWriter(
            head, context.tokenizer, asked.logprobs is not None, _echoes(context, asked, n)
        )
        job = Job(head["id"], prompts, params, n, tenant, started_s)
        return await _answer(context, request, asked, job, writer)

    return router


def begin(context: Context, job: Job) -> Generation:
    """Raises RequestError, and remembers where it is the engine that is gone."""
    try:
        return Generation(
            context.engine, context.mailbox, context.metrics, job, context.log_request, context.book
        )
    except RequestError as error:
        context.drain.engine_gone |= error.code == SHUTTING_DOWN
        raise


async def _answer(
    context: Context, request: Request, asked: GenerationRequest, job: Job, writer: Writer
) -> Response:
    generation = begin(context, job)
    if asked.stream:
        return EventStream(
            generation,
            writer,
            job.n,
            include_usage=asked.include_usage,
            explains=bool(asked.explain),
        )
    return await whole_response(request, generation, writer, job.n, explains=bool(asked.explain))


async def read(request: Request, kind: type[R]) -> R:
    """The request's body as a checked model."""
    try:
        async with asyncio.timeout(MAX_BODY_S):
            raw = await request.body()
    except TimeoutError:
        text = f"the request body did not arrive within {MAX_BODY_S:g} s"
        raise ApiError(Problem(408, text, None, "request_timeout")) from None
    try:
        data: Any = json.loads(raw)
    except RecursionError:
        raise ApiError(
            Problem(400, "the JSON is nested too deeply", None, "invalid_json")
        ) from None
    except ValueError as error:  # also: not UTF-8, a number of thousands of digits
        text = f"the request body is not valid JSON: {error}"
        raise ApiError(Problem(400, text, None, "invalid_json")) from None
    return kind.model_validate(data)


async def off_loop(n_chars: int, work: Callable[[], T]) -> T:
    """Do the work here when it is short, in a thread when it would hold up other requests."""
    return work() if n_chars <= INLINE_CHARS else await asyncio.to_thread(work)


async def encode_messages(
    context: Context,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    tenant: str,
    max_context_tokens: int | None = None,
) -> tuple[int, ...]:
    """Ids of the rendered messages; what cannot fit a context that is given is refused."""
    rendered = [message.rendered() for message in messages]
    n_chars = sum(len(message["content"]) for message in rendered)

    def encode() -> tuple[int, ...]:
        ids = context.tokenizer.encode_chat(
            rendered, None, add_generation_prompt, max_context_tokens, tenant
        )
        return tuple(ids)

    return await off_loop(n_chars, encode)


def recall(context: Context, tenant: str, messages: Sequence[Mapping[str, Any]]) -> Change | None:
    """What has changed since these messages' history was seen last; they are remembered."""
    now = State(context.tokenizer.chat_digest, context.engine.fingerprint.encode())
    change = context.turns.look(tenant, messages, now)
    if context.turns.due():
        context.flush_turns()
    return change


async def _encode_prompts(
    context: Context, asked: CompletionRequest
) -> tuple[tuple[int, ...], ...]:
    """A text is taken as it is: special tokens spelled in it are special tokens, as in vLLM."""
    special, limit = asked.add_special_tokens is not False, context.max_context_tokens

    def ids_of(prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(context.tokenizer.encode(prompt, special, "prompt", limit))
        return tuple(prompt)

    def encode() -> tuple[tuple[int, ...], ...]:
        return tuple(map(ids_of, asked.prompt))

    return await off_loop(sum(map(len, asked.prompt)), encode)


def _echoes(context: Context, asked: CompletionRequest, n: int) -> list[str]:
    if not asked.echo:
        return [""] * (len(asked.prompt) * n)
    decode = context.tokenizer.decode
    return [p if isinstance(p, str) else decode(p) for p in asked.prompt for _ in range(n)]


def check_model(context: Context, model: str | None) -> None:
    if model is not None and model != context.model_name:
        text = f"the model {model[:200]!r} does not exist; this server has {context.model_name!r}"
        raise ApiError(Problem(404, text, "model", "model_not_found"))


def _head(context: Context, request: Request, kind: str) -> Head:
    name = f"{kind}-{request.state.request_id}"
    return Head(
        id=name,
        created=int(time.time()),
        model=context.model_name,
        system_fingerprint=context.engine.fingerprint,
    )


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The body in /openapi.json, which FastAPI cannot see since `read` does the checking."""
    return {"requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}}}
