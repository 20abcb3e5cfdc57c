"""What every route needs, in one frozen object that `create_app` makes and passes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdover.config import Config
from holdover.engine.api import EngineLike
from holdover.server.mailbox import Mailbox
from holdover.server.metrics import Metrics


class TokenizerLike(Protocol):
    """The part of `text.tokenizer.Tokenizer` that the server uses."""

    @property
    def vocab_size(self) -> int: ...

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        field_name: str = "prompt",
        max_context_tokens: int | None = None,
    ) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_context_tokens: int | None = None,
        tenant: str = "",
    ) -> list[int]: ...


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
    log_request: Callable[[str], None] | None  # gets a line for each request that ended
