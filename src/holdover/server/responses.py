"""/v1/responses: one turn of a conversation, of which the client sends only what is new."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from holdover.errors import RequestError
from holdover.server.context import Context
from holdover.server.continuing import Prompt, Renderer
from holdover.server.errors import ApiError, Problem, from_request_error
from holdover.server.explain import Origin
from holdover.server.generation import Job
from holdover.server.keeping import forget, pin_again
from holdover.server.responding import ResponseStream, Run, Said, whole
from holdover.server.response_replies import Deleted, Ref, ResponseReply
from holdover.server.responses_protocol import ResponsesRequest
from holdover.server.routes import begin, check_model, off_loop, read, recall, schema_of
from holdover.server.store import Conversation, Store, StoredResponse


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which conversation a response goes; `new` where it is the first of it."""

    conversation: Conversation
    last: StoredResponse | None
    new: bool


def response_routes(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=schema_of(ResponsesRequest))
    async def create(request: Request) -> Response:
        started_s = time.perf_counter()
        asked = await read(request, ResponsesRequest)
        check_model(context, asked.model)
        try:
            return await _create(context, request, asked, started_s)
        except RequestError as error:
            raise ApiError(from_request_error(error, asked.renamed)) from error

    @router.get("/v1/responses/{response_id}")
    async def retrieve(request: Request, response_id: str) -> Response:
        found = await _found(context, request.state.tenant, response_id)
        return JSONResponse(found.reply)

    @router.delete("/v1/responses/{response_id}")
    async def delete(request: Request, response_id: str) -> Deleted:
        tenant = request.state.tenant
        gone = await context.archive.find(
            lambda store: store.delete_response(tenant, response_id), no_response(response_id)
        )
        await forget(context, [gone])
        return Deleted(id=response_id, object="response")

    return router


def no_response(name: str, param: str = "response_id") -> Problem:
    text = f"no response {name[:80]!r} is kept"
    return Problem(404, text, param, "response_not_found")


def no_conversation(name: str, param: str = "conversation_id") -> Problem:
    text = f"no conversation {name[:80]!r} is kept"
    return Problem(404, text, param, "conversation_not_found")


async def _found(
    context: Context, tenant: str, name: str, param: str = "response_id"
) -> StoredResponse:
    return await context.archive.find(
        lambda store: store.response(tenant, name), no_response(name, param)
    )


async def _create(
    context: Context, request: Request, asked: ResponsesRequest, started_s: float
) -> Response:
    tenant, params = request.state.tenant, asked.sampling()
    place = await _place(context, tenant, asked)
    history = place.conversation.items if place.last is None else place.last.messages
    new = asked.input if place.last is not None else [*history, *asked.input]
    renderer = Renderer(
        context.tokenizer, context.engine.fingerprint, tenant, context.max_context_tokens
    )
    n_chars = sum(len(m["content"]) for m in (*asked.lead, *history, *asked.input))
    prompt = await off_loop(n_chars, lambda: renderer.prompt(asked.lead, new, place.last))
    change = recall(context, tenant, [*asked.lead, *history, *asked.input])
    note = None if place.last is None else _how(prompt)
    name = f"resp_{request.state.request_id}"
    job = Job(name, (prompt.ids,), params, 1, tenant, started_s, Origin(change, note))
    generation = begin(context, job)
    begun = _begun(context, name, asked, place)

    async def keep(reply: ResponseReply, said: Said) -> ResponseReply:
        if asked.store is False:
            return reply
        answer = {"role": "assistant", "content": said.text}
        turn = StoredResponse(
            id=name,
            tenant=tenant,
            conversation=place.conversation.id,
            parent=None if place.last is None else place.last.id,
            n_turns=1 if place.last is None else place.last.n_turns + 1,
            n_prompt=len(prompt.ids),
            tokens=(*prompt.ids, *said.token_ids),
            messages=[*history, *asked.input, answer],
            text_digest=prompt.text_digest,
            chat_digest=context.tokenizer.chat_digest.hex(),
            fingerprint=context.engine.fingerprint,
            reply=reply.model_dump(mode="json"),
        )
        return await _kept(context, reply, turn, place)

    run = Run(generation, begun, keep, bool(asked.explain))
    return ResponseStream(run) if asked.stream else await whole(request, run)


async def _place(context: Context, tenant: str, asked: ResponsesRequest) -> Place:
    if asked.conversation is not None:
        name = asked.conversation

        def look(store: Store) -> Place | None:
            found = store.conversation(tenant, name)
            if found is None:
                return None
            last = None if found.last is None else store.response(tenant, found.last)
            return Place(found, last, new=False)

        return await context.archive.find(look, no_conversation(name, "conversation"))
    if asked.previous_response_id is None:
        return Place(new_conversation(tenant), None, new=True)
    last = await _found(context, tenant, asked.previous_response_id, "previous_response_id")
    conversation = last.conversation
    found = await context.archive.ask(lambda store: store.conversation(tenant, conversation))
    if found is None or found.last != last.id:  # from a turn that was gone on from already
        return Place(new_conversation(tenant), last, new=True)
    return Place(found, last, new=False)


def new_conversation(
    tenant: str,
    metadata: Mapping[str, str] | None = None,
    items: Sequence[Mapping[str, str]] = (),
) -> Conversation:
    now_s, name = time.time(), f"conv_{uuid.uuid4().hex}"
    return Conversation(
        name, tenant, now_s, now_s, metadata=dict(metadata or {}), items=[*map(dict, items)]
    )


def _how(prompt: Prompt) -> str:
    if prompt.anew is None:
        return "continued: the tokens of the earlier turn as they were computed, and what is new"
    return f"rendered anew: {prompt.anew}"


def _begun(context: Context, name: str, asked: ResponsesRequest, place: Place) -> ResponseReply:
    kept = asked.store is not False
    return ResponseReply(
        id=name,
        created_at=time.time(),
        status="in_progress",
        conversation=Ref(id=place.conversation.id) if kept or not place.new else None,
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata,
        model=context.model_name,
        previous_response_id=asked.previous_response_id,
        store=kept,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        user=asked.user,
    )


async def _kept(
    context: Context, reply: ResponseReply, turn: StoredResponse, place: Place
) -> ResponseReply:
    """The reply says `store: false` where it could not be kept."""
    new = place.conversation if place.new else None
    put = asyncio.ensure_future(context.archive.ask(lambda store: store.put(turn, new)))
    try:
        kept = await asyncio.shield(put)  # a client that leaves now changes nothing any more
    except ApiError:
        kept = False  # it is in the log
    if not kept:
        return reply.model_copy(update={"store": False, "conversation": None})
    await pin_again(context, replace(place.conversation, last=turn.id), turn)
    return reply
