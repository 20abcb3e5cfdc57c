"""Bytes of the cache that the steps read: what each sequence reads grows with its length."""

from __future__ import annotations

import numpy as np

from holdover.simulate.served import Served
from holdover.spec.layout import CacheLayout

_AHEAD_TOKENS = 512  # over which what one more token adds is taken
_MANY_TOKENS = 1 << 20


class Reads:
    """The sum over all sequences, at the step to come, and what each step adds to it.

    A sequence's share is exact when it is set and a straight line from there on.
    """

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        # Where every token is read, what one takes is asked once: a step's reads are often set.
        self._token_bytes = (
            layout.read_bytes(_MANY_TOKENS) / _MANY_TOKENS if layout.spec.keeps_all else None
        )
        self._step = 0
        self._bytes = 0.0  # were this step 0
        self._slope = 0.0

    @property
    def bytes(self) -> float:
        """Of the step to come."""
        return max(0.0, self._bytes + self._slope * self._step)

    def set(self, served: Served, n_tokens: int, tokens_a_step: int) -> None:
        """It reads what a sequence of `n_tokens` reads in the step to come."""
        self.remove(served)
        if self._token_bytes is not None:
            now, more = self._token_bytes * n_tokens, self._token_bytes
        else:
            now = float(self._layout.read_bytes(n_tokens))
            more = (self._layout.read_bytes(n_tokens + _AHEAD_TOKENS) - now) / _AHEAD_TOKENS
        served.read_slope = more * tokens_a_step
        served.read_bytes = now - served.read_slope * self._step
        self._bytes += served.read_bytes
        self._slope += served.read_slope

    def remove(self, served: Served) -> None:
        self._bytes -= served.read_bytes
        self._slope -= served.read_slope
        served.read_bytes = served.read_slope = 0.0

    def advance(self, n_steps: int) -> None:
        self._step += n_steps

    def steps_s(self, n_steps: int, fixed_s: float, bytes_per_s: float) -> float:
        """What so many steps take, each `fixed_s` beside its reads."""
        grown = self._slope * n_steps * (n_steps - 1) / 2
        return n_steps * fixed_s + max(0.0, n_steps * self.bytes + grown) / bytes_per_s

    def steps_until(self, until_s: float, most: int, fixed_s: float, bytes_per_s: float) -> int:
        """The fewest steps that take `until_s`, or `most`."""
        if most <= 1 or self.steps_s(most - 1, fixed_s, bytes_per_s) < until_s:
            return most
        low, high = 1, most - 1
        while low < high:
            middle = (low + high) // 2
            if self.steps_s(middle, fixed_s, bytes_per_s) >= until_s:
                high = middle
            else:
                low = middle + 1
        return low

    def tokens_to_change(self, n_tokens: int) -> int:
        """How many tokens after `n_tokens` a block first lies behind a window."""
        spec = self._layout.spec
        ahead = n_tokens + np.arange(spec.block_tokens + 1, dtype=np.int64)
        first = spec.block_tokens
        for group in spec.groups:
            blocks = group.residency.first_visible(ahead) // spec.block_tokens
            changed = np.flatnonzero(blocks > blocks[0])
            if len(changed):
                first = min(first, int(changed[0]))
        return max(1, first)
