"""From other threads to the event loop, with one wake-up however much has been posted.

Waking the loop is a write to a pipe; an engine that steps many sequences would write once for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """For one event loop. Items are delivered in the order in which they were posted."""

    def __init__(self) -> None:
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._rung = False

    def post(
        self, loop: asyncio.AbstractEventLoop, take: Callable[[Any], None], item: object
    ) -> None:
        """From any thread: `take(item)` will be called on the loop. Returns at once."""
        self._items.append((take, item))
        if not self._rung:  # else the loop has not begun to look: it will find this too
            self._rung = True
            # a closed loop means the server is gone, and the client with it
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._rung = False  # first: what is posted while this looks may come too late for it
        while self._items:
            take, item = self._items.popleft()
            take(item)
