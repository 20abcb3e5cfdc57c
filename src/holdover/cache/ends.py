"""What prompts ended with: the same prompt again needs no step for its first token.

    prompt   | block 0 | block 1 | the last tokens, a block of them at most |
    known by   key of what is before them, and they themselves

A row (`spec.ends`) follows from the tokens alone, as keys and values do, and has the same identity:
tenant, weights and layout are in the key. It is used where a sequence has all the blocks before its
last tokens: what it lacks is computed with its first token, in one chunk. Sequences that stand on
what a tier requantised neither leave a row nor take one, so that a row changes no answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from holdover.cache.blocks import TOKEN_BYTES
from holdover.cache.prefix import token_bytes
from holdover.cache.sequence import SequenceCache

Row = NDArray[np.float32]


class PromptEnds:
    """The rows used last, as many as `rows` [kept, width] has; none where it has none."""

    def __init__(self, rows: Row, block_tokens: int) -> None:
        self._rows = rows
        self._block_tokens = block_tokens
        self._free = list(range(len(rows)))
        self._places: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()

    @classmethod
    def none(cls) -> PromptEnds:
        return cls(np.empty((0, 0), np.float32), 1)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, sequence: SequenceCache, prompt: Sequence[int]) -> Row | None:
        """The row of a prompt, of which the sequence has all but the last tokens; a view until the
        next `keep`."""
        n_before = (len(prompt) - 1) // self._block_tokens
        if not self._places or n_before >= len(sequence.keys) or not sequence.is_exact:
            return None
        last = token_bytes(prompt[n_before * self._block_tokens :])
        place = self._used(sequence.keys[n_before], last)
        return None if place is None else self._rows[place]

    def keep(self, sequence: SequenceCache, row: Row) -> None:
        """`row` is of the last token of a sequence that is a whole prompt, and no more."""
        if not len(self._rows) or not sequence.is_exact:
            return
        n_before = (sequence.n_tokens - 1) // self._block_tokens
        last = bytes(sequence.tokens[n_before * self._block_tokens * TOKEN_BYTES :])
        parent = sequence.keys[n_before]
        if self._used(parent, last) is not None:
            return
        place = self._free.pop() if self._free else self._places.popitem(last=False)[1]
        self._places[parent, last] = place
        self._rows[place] = row

    def forget(self, runs: Mapping[bytes, bytes]) -> None:
        """Erase those of prompts that ended within `runs`, each known by the key before it."""
        for parent, last in list(self._places):
            if parent in runs and runs[parent].startswith(last):
                place = self._places.pop((parent, last))
                self._rows[place] = 0
                self._free.append(place)

    def _used(self, parent: bytes, last: bytes) -> int | None:
        place = self._places.get((parent, last))
        if place is not None:
            self._places.move_to_end((parent, last))
        return place
