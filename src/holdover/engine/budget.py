"""How a step's tokens are shared, so that first tokens come soon.

    single    whoever needs one token gets it
    oldest    the oldest prompt takes all that is left, if it is as long
    younger   fill the step until it has ENOUGH_TOKENS of prompts

A prompt's first token comes at the end of the step in which the prompt ends, and waits for all that
is computed there. One that does not end fills its step alone: long steps read the weights less
often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

ENOUGH_TOKENS = 128  # in one step: more are computed at nearly the same rate


class Pending(Protocol):
    @property
    def n_pending(self) -> int: ...


Asker = TypeVar("Asker", bound=Pending)


class StepBudget:
    """What is left of one step; asked for oldest first, by who runs and then by who enters."""

    def __init__(self, n_tokens: int) -> None:
        self.n_left = n_tokens
        self._n_taken = 0  # by prompts, and by who enters with a single token

    def share(self, running: Sequence[Asker]) -> list[tuple[Asker, int]]:
        """Those who run and get some of their pending tokens, and how many."""
        pending = [asker.n_pending for asker in running]
        self.n_left -= pending.count(1)
        shares = [1 if n_pending == 1 else self.take(n_pending) for n_pending in pending]
        return [(asker, n) for asker, n in zip(running, shares, strict=True) if n]

    def take(self, n_pending: int) -> int:
        """How many of its pending tokens one sequence gets, which may be none."""
        most = self.n_left
        if n_pending > 1 and self._n_taken:
            most = min(most, max(0, ENOUGH_TOKENS - self._n_taken))
        n_tokens = min(n_pending, most)
        self.n_left -= n_tokens
        self._n_taken += n_tokens
        return n_tokens
