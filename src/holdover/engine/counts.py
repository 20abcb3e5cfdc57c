"""Which tokens a sequence has seen and how often it generated each, for the penalties.

Kept only for sequences that ask for a penalty. Adding a token is O(1); the sampler reads the flat
arrays without copying.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Distinct tokens of prompt and answer, each with its count in the answer."""

    def __init__(self, prompt: Sequence[int]) -> None:
        unique = np.unique(np.asarray(prompt, dtype=np.int64))
        self._n = len(unique)
        self._ids = np.zeros(max(64, 2 * self._n), dtype=np.int64)
        self._ids[: self._n] = unique
        self._generated = np.zeros(len(self._ids), dtype=np.float32)
        self._slot = {int(token): slot for slot, token in enumerate(unique)}

    @property
    def ids(self) -> NDArray[np.int64]:
        """[distinct tokens]"""
        return self._ids[: self._n]

    @property
    def generated(self) -> NDArray[np.float32]:
        """[distinct tokens], how often each was generated; 0 for tokens of the prompt only."""
        return self._generated[: self._n]

    def add(self, token: int) -> None:
        """Count one generated token."""
        slot = self._slot.get(token)
        if slot is None:
            slot = self._slot[token] = self._n
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._generated = np.concatenate([self._generated, np.zeros_like(self._generated)])
            self._ids[slot] = token
            self._n += 1
        self._generated[slot] += 1
