"""/v1/conversations: what was said in turns, to list, inspect, fork, pin and delete."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request

from holdover.cache.keeping import Kept
from holdover.errors import RequestError
from holdover.server.context import Context
from holdover.server.errors import ApiError
from holdover.server.keeping import forget, kept, pin
from holdover.server.response_replies import (
    ConversationList,
    ConversationReply,
    Deleted,
    InspectedConversation,
)
from holdover.server.responses import new_conversation, no_conversation, no_response
from holdover.server.responses_protocol import Fork, NewConversation, Pin
from holdover.server.routes import read, schema_of
from holdover.server.store import Conversation, Store, StoredResponse, forked

_MOST_LISTED = 100


def conversation_routes(context: Context) -> APIRouter:
    router = APIRouter()
    archive = context.archive

    @router.get("/v1/conversations")
    async def listed(
        request: Request, limit: str = "20", after: str | None = None, order: str = "desc"
    ) -> ConversationList:
        n = _limit(limit)
        if order not in ("asc", "desc"):
            raise RequestError("order", f"order must be asc or desc, not {order[:20]!r}")
        tenant, before = request.state.tenant, None
        if after is not None:
            before = await _found(context, tenant, after, "after")
        found = await archive.ask(
            lambda store: store.conversations(tenant, before, n + 1, order == "desc")
        )
        data = [_reply(one) for one in found[:n]]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return ConversationList(data=data, first_id=first, last_id=last, has_more=len(found) > n)

    @router.post("/v1/conversations", openapi_extra=schema_of(NewConversation))
    async def create(request: Request) -> ConversationReply:
        asked = await read(request, NewConversation)
        made = new_conversation(request.state.tenant, asked.metadata, asked.items)
        await archive.ask(lambda store: store.add_conversation(made))
        return _reply(made)

    @router.get("/v1/conversations/{conversation_id}")
    async def inspect(request: Request, conversation_id: str) -> InspectedConversation:
        found = await _found(context, request.state.tenant, conversation_id)
        return _inspected(found, await kept(context, await _last(context, found)))

    @router.post("/v1/conversations/{conversation_id}/fork", openapi_extra=schema_of(Fork))
    async def fork(request: Request, conversation_id: str) -> ConversationReply:
        asked = await read(request, Fork)
        tenant = request.state.tenant
        source = await _found(context, tenant, conversation_id)
        name = asked.response_id or source.last
        made = new_conversation(tenant, asked.metadata, source.items)
        if name is None:
            await archive.ask(lambda store: store.add_conversation(made))
            return _reply(made)
        turn = await archive.ask(lambda store: store.response(tenant, name))
        if turn is None or turn.conversation != source.id:
            raise ApiError(no_response(name))
        copy = forked(source, turn, made.id, f"resp_{uuid.uuid4().hex}")
        await archive.ask(lambda store: store.put(copy, made))
        return _reply(_at(made, copy))

    @router.post("/v1/conversations/{conversation_id}/pin", openapi_extra=schema_of(Pin))
    async def pinned(request: Request, conversation_id: str) -> InspectedConversation:
        asked = await read(request, Pin)
        tenant = request.state.tenant
        found = await _found(context, tenant, conversation_id)
        until_s = time.time() + asked.ttl_s if asked.ttl_s else 0.0
        await archive.ask(lambda store: store.pin(tenant, conversation_id, until_s))
        last = await _last(context, found)
        if last is not None:
            await pin(context, last, until_s)
        return _inspected(replace(found, pinned_until_s=until_s), await kept(context, last))

    @router.delete("/v1/conversations/{conversation_id}")
    async def delete(request: Request, conversation_id: str) -> Deleted:
        tenant = request.state.tenant

        def remove(store: Store) -> list[StoredResponse] | None:
            if store.conversation(tenant, conversation_id) is None:
                return None
            return store.delete_conversation(tenant, conversation_id)

        gone = await archive.find(remove, no_conversation(conversation_id))
        await forget(context, gone)
        return Deleted(id=conversation_id, object="conversation.deleted")

    return router


async def _found(
    context: Context, tenant: str, name: str, param: str = "conversation_id"
) -> Conversation:
    return await context.archive.find(
        lambda store: store.conversation(tenant, name), no_conversation(name, param)
    )


async def _last(context: Context, of: Conversation) -> StoredResponse | None:
    tenant, name = of.tenant, of.last
    if name is None:
        return None
    return await context.archive.ask(lambda store: store.response(tenant, name))


def _limit(text: str) -> int:
    n = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= n <= _MOST_LISTED:
        raise RequestError("limit", f"limit must be between 1 and {_MOST_LISTED}")
    return n


def _at(conversation: Conversation, turn: StoredResponse) -> Conversation:
    return replace(conversation, last=turn.id, n_tokens=len(turn.tokens), n_turns=turn.n_turns)


def _reply(found: Conversation) -> ConversationReply:
    now_s = time.time()
    return ConversationReply(
        id=found.id,
        created_at=int(found.created_s),
        last_used_at=found.used_s,
        age_s=max(0.0, now_s - found.used_s),
        tokens=found.n_tokens,
        turns=found.n_turns,
        last_response_id=found.last,
        pinned_until=found.pinned_until_s if found.pinned_until_s > now_s else None,
        metadata=found.metadata,
    )


def _inspected(found: Conversation, lies: Kept) -> InspectedConversation:
    return InspectedConversation(
        **_reply(found).model_dump(),
        reusable_tokens=lies.reusable_tokens,
        bytes=lies.bytes_in,
    )
