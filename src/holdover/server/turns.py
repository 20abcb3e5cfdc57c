"""With which chat template, and by which model, a history was rendered when it was last seen.

A history is known by a keyed hash of its messages; what is remembered of it is no more than two
digests. Where the same messages come again under another state, that is why nothing was reused.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdover.server.limits import KEPT_TURNS

FLUSH_S = 5.0
_HASH_BYTES = 16

Change = Literal["template_changed", "other_model"]


@dataclass(frozen=True, slots=True)
class State:
    chat: bytes  # 16 bytes: `Tokenizer.chat_digest`
    model: bytes  # the engine's fingerprint

    def changed_to(self, now: State) -> Change | None:
        if self.chat != now.chat:
            return "template_changed"
        return "other_model" if self.model != now.model else None


@dataclass(slots=True)
class Turns:
    """Event loop only."""

    secret: bytes
    _states: OrderedDict[tuple[str, bytes], State] = field(default_factory=OrderedDict)
    _new: dict[tuple[str, bytes], State] = field(default_factory=dict)
    _gone: list[tuple[str, bytes]] = field(default_factory=list)
    _flushed_s: float = 0.0

    def recall(self, rows: Sequence[tuple[str, bytes, bytes]]) -> None:
        """From the store."""
        for tenant, key, state in rows:
            self._states[tenant, key] = State(state[:16], state[16:])

    def look(self, tenant: str, messages: Sequence[Mapping[str, Any]], now: State) -> Change | None:
        """What has changed since the longest of these messages' beginnings was seen last.

        From now on they are remembered with `now`.
        """
        keys = list(self._keys(tenant, messages))
        known = (self._states.get((tenant, key)) for key in reversed(keys))
        before = next((state for state in known if state is not None), None)
        self._states.pop((tenant, keys[-1]), None)
        self._states[tenant, keys[-1]] = self._new[tenant, keys[-1]] = now
        if len(self._states) > KEPT_TURNS:
            self._new.pop(self._states.popitem(last=False)[0], None)
        return None if before is None else before.changed_to(now)

    def forget(self, tenant: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """All beginnings of a history that was deleted; the store has its own to forget."""
        for key in self._keys(tenant, messages):
            self._states.pop((tenant, key), None)
            self._new.pop((tenant, key), None)
            self._gone.append((tenant, key))

    def due(self) -> bool:
        return bool(self._new or self._gone) and time.monotonic() - self._flushed_s > FLUSH_S

    def take(self) -> tuple[list[tuple[str, bytes, bytes]], list[tuple[str, bytes]]]:
        """What the store has not got yet, and what it is to forget."""
        self._flushed_s = time.monotonic()
        new, self._new = self._new, {}
        gone, self._gone = self._gone, []
        rows = [(tenant, key, state.chat + state.model) for (tenant, key), state in new.items()]
        return rows, gone

    def _keys(self, tenant: str, messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
        """Of each beginning, the whole last."""
        so_far = hashlib.blake2b(tenant.encode(), key=self.secret, digest_size=_HASH_BYTES)
        for message in messages:
            for part in (message["role"], message["content"]):
                data = part.encode("utf-8", "replace")
                so_far.update(len(data).to_bytes(8, "little") + data)
            yield so_far.digest()
