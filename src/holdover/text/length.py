"""How few tokens a text can have, known without tokenizing it, and the refusal of what is too long.

A token covers at most as many bytes (or characters) of the text as its own spelling has. Where the
tokenizer may drop text or make several characters one, the bound says so by being lower, or 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import tokenizers
from tokenizers import models

from holdover.errors import RequestError

_NFC_SHRINKS = 3  # bytes of the longest sequence that becomes one character, over the latter's


@dataclass(frozen=True)
class LengthBound:
    backend: tokenizers.Tokenizer
    byte_level: bool
    byte_of_char: dict[str, int]

    def least_tokens(self, text: str) -> int:
        if self._shrinks == 0:
            return 0
        n = len(text)
        if self.byte_level:
            n = len(text.encode("utf-8", "replace").translate(None, self._dropped))
        return n // (self._longest * self._shrinks)

    @cached_property
    def _longest(self) -> int:
        """Characters of the longest token; each stands for a byte in a byte-level one."""
        # One by one: the whole vocabulary at once holds other threads up.
        name_of = self.backend.id_to_token
        n_ids = self.backend.get_vocab_size(with_added_tokens=True)
        longest = max(len(name_of(token_id) or "") for token_id in range(n_ids))
        added = self.backend.get_added_tokens_decoder().values()
        return max(longest, *(len(token.content.encode()) for token in added), 1)

    @cached_property
    def _dropped(self) -> bytes:
        """Bytes that the vocabulary lacks: they add no token."""
        known = self.backend.token_to_id
        return bytes(b for char, b in self.byte_of_char.items() if known(char) is None)

    @cached_property
    def _shrinks(self) -> int:
        """How many times longer a text can be than what its tokens spell; 0 if unknown."""
        model = self.backend.model
        added = self.backend.get_added_tokens_decoder().values()
        if not isinstance(model, models.BPE) or any(t.lstrip or t.rstrip for t in added):
            return 0
        if not self.byte_level and not (
            model.byte_fallback and self.backend.token_to_id("<0x00>") is not None
        ):
            return 0
        normalizer = self.backend.normalizer
        if normalizer is None:
            return 1
        state = json.loads(normalizer.__getstate__())
        if state["type"] == "NFC":
            return _NFC_SHRINKS
        one_for_one = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        return 1 if state == one_for_one else 0


def too_long(field: str, has: str, max_context_tokens: int, answer_tokens: int = 1) -> RequestError:
    """For a prompt that `has` so many tokens, and an answer of `answer_tokens`.

    An answer that leaves no prompt any room is not what the prompt is measured by.
    """
    most_tokens = max_context_tokens - (answer_tokens if answer_tokens < max_context_tokens else 1)
    return RequestError(
        field,
        f"the prompt has {has}; prompt and answer together can have {max_context_tokens}, so that "
        f"a prompt of up to {most_tokens} would fit",
        code="context_length_exceeded",
    )
