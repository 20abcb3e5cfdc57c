"""The prompt of a next turn: the tokens of the last one as they were computed, and what is new.

    kept   prompt tokens | answer tokens, end token included
    text   what was rendered then | the answer | the template's rest of it, and the new messages

Rendering the whole history again would mostly give the same text, and not always the same tokens:
a model may spell a text in another way than the tokenizer does. So the whole is rendered, and only
what comes after the answer in it is tokenized. Where the history does not begin with the text of
the last turn (another template, other instructions, a template that shortens old turns), the whole
rendering is the prompt, and `anew` says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdover.server.store import StoredResponse
from holdover.server.tokens import TokenizerLike

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    text_digest: str
    anew: str | None = None


@dataclass(frozen=True, slots=True)
class Renderer:
    tokenizer: TokenizerLike
    fingerprint: str  # of the engine: what computed tokens follow from
    tenant: str
    max_context_tokens: int

    def prompt(
        self, lead: Sequence[Message], new: Sequence[Message], last: StoredResponse | None
    ) -> Prompt:
        """`lead` is what goes before all turns: instructions, which are not inherited."""
        old = [] if last is None else last.messages
        text = self.tokenizer.chat_text([*lead, *old, *new])
        digest = _digest(text)
        if last is None:
            return Prompt(self._ids(text), digest)
        if last.fingerprint != self.fingerprint:
            anew = "the earlier turn was computed by another model or with other settings"
            return Prompt(self._ids(text), digest, anew)
        if last.chat_digest != self.tokenizer.chat_digest.hex():
            anew = "the chat template has changed since the earlier turn"
            return Prompt(self._ids(text), digest, anew)
        before = self.tokenizer.chat_text([*lead, *old[:-1]])
        if _digest(before) != last.text_digest:
            anew = "the instructions differ from those of the earlier turn"
            return Prompt(self._ids(text), digest, anew)
        ids = self._continued(last, before, text)
        if ids is None:
            anew = "the chat template writes the earlier turn in another way once it is history"
            return Prompt(self._ids(text), digest, anew)
        return Prompt(ids, digest)

    def _continued(self, last: StoredResponse, before: str, text: str) -> tuple[int, ...] | None:
        if not text.startswith(before):
            return None
        after = text[len(before) :]
        answer: str = last.messages[-1]["content"]
        for said in dict.fromkeys((answer, answer.strip())):  # many templates strip it
            if after.startswith(said):
                break
        else:
            return None
        n_spelled, left = self._spelled(last.tokens[last.n_prompt :], said)
        rest = left + after[len(said) :]
        ids = self.tokenizer.chat_ids(rest, self.max_context_tokens, self.tenant, begins=False)
        if not ids or not (self.tokenizer.cuts_anywhere or self._is_special(ids[0])):
            return None
        return (*last.tokens[: last.n_prompt + n_spelled], *ids)

    def _spelled(self, tokens: Sequence[int], said: str) -> tuple[int, str]:
        """How many of the answer's tokens spell the beginning of what was said, and what is left.

        A stop string, half a character and the end token are tokens of it that nobody said.
        """
        data = said.encode()
        at = n_spelled = end = 0
        for number, token in enumerate(tokens, 1):
            piece = self.tokenizer.token_bytes(token)
            if not piece or not data.startswith(piece, at):
                break
            at += len(piece)
            if at == len(data) or data[at] & 0xC0 != 0x80:  # at the beginning of a character
                n_spelled, end = number, at
        return n_spelled, data[end:].decode()

    def _is_special(self, token: int) -> bool:
        return not self.tokenizer.decode([token]) and bool(self.tokenizer.token_bytes(token))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.chat_ids(text, self.max_context_tokens, self.tenant))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
