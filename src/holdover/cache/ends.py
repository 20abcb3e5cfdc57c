"""Last hidden states of prompts: the same prompt again gets its first token without a prefill.

    prompt   | block 0 | block 1 | the last tokens, a block of them at most |
    known by   key of what is before them, and they themselves

A row (`spec.ends`) follows from the tokens alone, as keys and values do, and has the same identity:
tenant, weights and layout are in the key, whose 128 bits stand for what is before the last tokens.
It is used where a sequence has all the blocks before them: what it lacks is computed with its first
token, in one chunk. Sequences that stand on what a tier requantised neither leave a row nor take
one: it would not be that of the exact prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from holdover.cache.blocks import TOKEN_BYTES
from holdover.cache.prefix import token_bytes
from holdover.cache.sequence import SequenceCache
from holdover.spec.ends import EndLayout

HiddenStates = NDArray[np.float32]
"""[rows, width], or one row."""


class PromptEnds:
    """The rows used last, as many as the layout keeps; `step_rows` are room for those of a step."""

    def __init__(self, layout: EndLayout, block_tokens: int) -> None:
        rows = np.zeros((layout.n_rows, layout.width), np.float32)
        self._rows, self.step_rows = rows[: layout.n_kept], rows[layout.n_kept :]
        self._block_tokens = block_tokens
        self._free = list(range(layout.n_kept))
        self._places: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self.step_rows.nbytes

    def __len__(self) -> int:
        return len(self._places)

    def find(self, sequence: SequenceCache, prompt: Sequence[int]) -> HiddenStates | None:
        """The row of a prompt, of which the sequence has all but the last tokens; a view until the
        next `keep`."""
        n_before = (len(prompt) - 1) // self._block_tokens
        if not self._places or n_before >= len(sequence.keys) or not sequence.is_exact:
            return None
        last = token_bytes(prompt[n_before * self._block_tokens :])
        place = self._used(sequence.keys[n_before], last)
        return None if place is None else self._rows[place]

    def keep(self, sequence: SequenceCache, row: HiddenStates) -> None:
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
