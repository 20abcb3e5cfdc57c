"""Keeps what people write from being read as control tokens once it stands in a chat template.

A mark is put into every control token spelled in a message; the tokenizer knows the mark as a token
of its own, so the spelling becomes plain text, and drops it from the ids. Texts without such a
spelling are not touched. Adjacent messages could still spell one together, if a template puts
nothing between them; no published one does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, models

MARK = "\ufdd0\ufdd1"
"""Two code points that Unicode keeps for such use inside programs, and never for text."""

T = TypeVar("T")


@dataclass(frozen=True)
class ControlGuard:
    """`controls` are the special tokens; `markers` other added tokens that the template writes."""

    controls: Sequence[AddedToken]
    markers: Sequence[AddedToken]
    normalizer: Any

    def render(self, template: Callable[[T], str], data: T) -> str:
        """`template(data)` with marks in the control tokens that `data` spells.

        Some templates look for their own markers in a message, `</think>` for one. Those are left
        alone: a marker that is no special token is guarded where that leaves the text as it is.
        """
        plain = template(data)
        if not self._is_spelled(data):
            return plain
        guarded = {token.content for token in self.controls}
        for marker in sorted(token.content for token in self.markers):
            marked = template(self._marked(data, {marker}))
            if marked.replace(MARK, "") == plain.replace(MARK, ""):
                guarded.add(marker)
        return template(self._marked(data, guarded))

    @cached_property
    def _names(self) -> list[str]:
        return [token.content for token in (*self.controls, *self.markers)]

    @cached_property
    def _finder(self) -> tokenizers.Tokenizer:
        """Finds added tokens as the library does, for which it needs any model at all."""
        finder = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if self.normalizer is not None:
            finder.normalizer = self.normalizer
        finder.add_tokens(
            [
                AddedToken(token.content, normalized=token.normalized, special=False)
                for token in (*self.controls, *self.markers)
                if len(token.content) > 1  # nothing can be put into one character
            ]
        )
        return finder

    def _matches(self, text: str) -> list[tuple[int, str]]:
        """Start and token of each one spelled in the text."""
        if self.normalizer is None and not any(name in text for name in self._names):
            return []  # the usual case, at a hundredth of the time
        encoding = self._finder.encode_batch([text], add_special_tokens=False)[0]
        names = map(self._finder.id_to_token, encoding.ids)
        spans = zip(names, encoding.offsets, strict=True)
        return [(start, name) for name, (start, _) in spans if name]

    def _is_spelled(self, data: Any) -> bool:
        """Whether any of the tokens is, anywhere."""
        if isinstance(data, str):
            return bool(self._matches(data))
        if isinstance(data, Mapping):
            data = [*data, *data.values()]
        return isinstance(data, list | tuple) and any(map(self._is_spelled, data))

    def _marked(self, data: Any, guarded: Collection[str]) -> Any:
        if isinstance(data, str):
            return self._marked_text(data, guarded)
        if isinstance(data, Mapping):
            return {self._marked(k, guarded): self._marked(v, guarded) for k, v in data.items()}
        if isinstance(data, list | tuple):
            return [self._marked(value, guarded) for value in data]
        return data

    def _marked_text(self, text: str, guarded: Collection[str]) -> str:
        # What is left of a broken token may spell another one.
        while cuts := [start + 1 for start, name in self._matches(text) if name in guarded]:
            ends = [*cuts, len(text)]
            text = MARK.join(text[a:b] for a, b in zip([0, *cuts], ends, strict=True))
        return text
