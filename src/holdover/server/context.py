"""What every route needs, in one frozen object that `create_app` makes and passes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from holdover.config import Config
from holdover.engine.api import EngineLike
from holdover.server.archive import Archive
from holdover.server.explain import Book
from holdover.server.limits import KEPT_TURNS
from holdover.server.mailbox import Mailbox
from holdover.server.metrics import Metrics
from holdover.server.tokens import TokenizerLike
from holdover.server.turns import Turns


@dataclass(slots=True)
class Drain:
    """How many requests are being answered, and whether new ones still are. Event loop only."""

    active: int = 0
    draining: bool = False
    engine_gone: bool = False  # it refuses requests though nobody shut it down
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self) -> None:
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        self.active -= 1
        if self.active == 0:
            self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is being answered; False when that took too long."""
        if self.active == 0:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Context:
    engine: EngineLike
    tokenizer: TokenizerLike
    config: Config
    model_name: str
    max_context_tokens: int
    created: int  # Unix time, seconds
    mailbox: Mailbox
    metrics: Metrics
    drain: Drain
    book: Book
    turns: Turns
    archive: Archive
    log_request: Callable[[str], None] | None  # gets a line for each request that ended

    def flush_turns(self) -> None:
        rows, gone = self.turns.take()
        self.archive.tell(lambda store: store.put_turns(rows, gone, KEPT_TURNS))
