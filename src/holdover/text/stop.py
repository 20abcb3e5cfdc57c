"""Stop strings in streamed text.

The text ends at the stop string whose last character comes first (of several ending there, the
longest), wherever the pieces are cut. No character of it is emitted, nor one that could still turn
out to belong to one.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdover.errors import RequestError


class StopMatcher:
    """Feed text piece by piece; what may be shown comes back."""

    __slots__ = ("_held", "_stop_strings", "_stopped")

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if any(not stop for stop in stop_strings):
            raise RequestError("stop", "a stop string must have at least one character")
        self._stop_strings = tuple(stop_strings)
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to emit now, and the stop string if one is complete."""
        if self._stopped is not None:
            return "", self._stopped
        if not self._stop_strings:
            return text, None
        pending = self._held + text
        found = [(at + len(s), at, s) for s in self._stop_strings if (at := pending.find(s)) >= 0]
        if found:
            _, start, self._stopped = min(found)
            self._held = ""
            return pending[:start], self._stopped
        n_held = max(_overlap(pending, stop) for stop in self._stop_strings)
        n_emitted = len(pending) - n_held
        self._held = pending[n_emitted:]
        return pending[:n_emitted], None

    def flush(self) -> str:
        """The text held back at the end of generation: no stop string will complete it now."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
