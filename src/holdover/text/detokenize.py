"""Token ids to text as they are generated.

The pieces joined, flush included, are exactly `tokenizer.decode` of all the ids. A character is
emitted with the token that completes it; bytes that no token completes become U+FFFD, at the first
token that shows it, or at `flush`. The work per token does not grow with the text.
"""

from __future__ import annotations

import codecs

from holdover.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """One per sequence. `continues_text` keeps a leading space that starts-of-text would lose."""

    __slots__ = ("_decoder", "_skip_special", "_strip_next", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._strip_next = tokenizer.strips_leading_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text completed by this token; often empty in the middle of a character."""
        if self._skip_special and token_id in self._tokenizer.special_ids:
            return ""
        return self._stripped(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """U+FFFD if the last character was never completed, else nothing."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text
