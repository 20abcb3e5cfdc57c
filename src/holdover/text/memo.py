"""Ids of texts that were tokenized before: a conversation's next turn sends all earlier ones again.

A text falls into pieces at the special tokens in it, where the tokenizer itself starts anew; each
piece is remembered by itself. What one tenant sent is not remembered for another, who could tell
from the time it saves.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

MAX_BYTES = 4 << 20
_ENTRY_BYTES = 400  # keys, the array's head and the dictionary's share
_INDEPENDENT = ("Digits", "Split", "Punctuation", "ByteLevel")  # pre-tokenizers of each piece alone

Key = tuple[str, str]


@dataclass(slots=True)
class Memo:
    """The pieces used last, up to `max_bytes` of text and ids. Any thread may ask."""

    max_bytes: int = MAX_BYTES
    n_bytes: int = 0
    _ids: OrderedDict[Key, NDArray[np.int32]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ids_of(
        self,
        tenant: str,
        pieces: Sequence[str],
        encode: Callable[[list[str]], list[list[int]]],
    ) -> list[int]:
        """Ids of all pieces in a row; `encode` is asked for those that are not known."""
        keys = [(tenant, piece) for piece in pieces]
        found: dict[Key, NDArray[np.int32]] = {}
        with self._lock:
            for key in keys:
                known = self._ids.get(key)
                if known is not None:
                    self._ids.move_to_end(key)
                    found[key] = known
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        if missing:
            made = encode([piece for _, piece in missing])
            found |= {k: np.array(ids, np.int32) for k, ids in zip(missing, made, strict=True)}
            with self._lock:
                for key in missing:
                    self._keep(key, found[key])
        return [i for key in keys for i in found[key].tolist()]

    def _keep(self, key: Key, ids: NDArray[np.int32]) -> None:
        if key in self._ids:  # another thread was as fast
            return
        self._ids[key] = ids
        self.n_bytes += _held_bytes(key, ids)
        while self.n_bytes > self.max_bytes:
            self.n_bytes -= _held_bytes(*self._ids.popitem(last=False))


def piece_ends(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Finds the added tokens at which `backend` cuts a text; None: no text can be cut so.

    It can where every added token is taken as it is spelled, and where what the tokenizer does to a
    piece does not depend on the pieces before it.
    """
    added = list(backend.get_added_tokens_decoder().values())
    rule = backend.pre_tokenizer
    state = None if rule is None else json.loads(rule.__getstate__())
    as_spelled = not any(t.normalized or t.lstrip or t.rstrip or t.single_word for t in added)
    if not (added and as_spelled and _independent(state)):
        return None
    names = sorted((t.content for t in added), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, names))})")


def _independent(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_independent, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _INDEPENDENT and not pre_tokenizer.get("add_prefix_space")


def _held_bytes(key: Key, ids: NDArray[np.int32]) -> int:
    text = key[1]
    return len(text) * (1 if text.isascii() else 4) + ids.nbytes + _ENTRY_BYTES
