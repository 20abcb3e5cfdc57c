"""Token ids to text as they are generated.

The pieces joined are `tokenizer.decode` of all the ids, but for a character that the last ones only
begin: of that nothing is emitted, as in vLLM. A character is emitted with the token that completes
it; bytes that a later token shows to make none become U+FFFD there. The work per token does not
grow with the text.
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

    def _stripped(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text
