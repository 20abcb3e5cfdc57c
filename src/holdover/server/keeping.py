"""What the cache is told of conversations: where one lies, to keep it longer, to be rid of it.

The engine answers between two steps; nothing here holds up its thread or the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from holdover.cache.keeping import Kept
from holdover.server.context import Context
from holdover.server.store import Conversation, Store, StoredResponse


async def kept(context: Context, turn: StoredResponse | None) -> Kept:
    if turn is None:
        return Kept(0, {})
    return await asyncio.wrap_future(context.engine.kept(turn.tokens, turn.tenant))


async def pin(context: Context, turn: StoredResponse, until_s: float) -> None:
    """`until_s` is a Unix time, 0 ends it; the cache goes by a clock that nobody sets."""
    clock_s = 0.0 if not until_s else time.monotonic() + max(0.0, until_s - time.time())
    await asyncio.wrap_future(context.engine.pin(turn.tokens, turn.tenant, clock_s))


async def pin_again(context: Context, conversation: Conversation, turn: StoredResponse) -> None:
    """After a turn, which has blocks of its own."""
    if conversation.pinned_until_s > time.time():
        await pin(context, turn, conversation.pinned_until_s)


async def pin_what_was(context: Context) -> None:
    """After a restart: what a disk tier keeps of pinned conversations goes last, too."""
    ask = context.archive.ask
    for found in await ask(lambda store: store.pinned(time.time())):
        name, tenant = found.last, found.tenant
        if name is None:
            continue
        last = await ask(partial(Store.response, tenant=tenant, name=name))
        if last is not None:
            await pin(context, last, found.pinned_until_s)


async def forget(context: Context, gone: Sequence[StoredResponse]) -> None:
    """The longest first: what stands on another's blocks goes before them."""
    for turn in sorted(gone, key=lambda turn: len(turn.tokens), reverse=True):
        n_shared = await context.archive.ask(
            partial(Store.shared_tokens, tenant=turn.tenant, tokens=turn.tokens)
        )
        if n_shared < len(turn.tokens):
            await asyncio.wrap_future(context.engine.forget(turn.tokens, turn.tenant, n_shared))
        context.turns.forget(turn.tenant, turn.messages)
    context.flush_turns()
