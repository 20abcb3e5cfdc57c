"""The text that is scored, as chunks of tokens.

Without a file it is one that every Python brings along: the topics of `help()`, in the order of
their names. It differs a little between versions of Python.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.errors import ConfigError
from holdover.files import reading
from holdover.text.tokenizer import Tokenizer

LEAST_CONTEXT_TOKENS = 4  # two halves, of which one is scored less its last token
_CHARACTERS_PER_TOKEN = 8  # read of the built-in text; English has 4


@dataclass(frozen=True, slots=True)
class Text:
    """`name` says where it is from."""

    name: str
    characters: str

    def chunks(self, tokenizer: Tokenizer, count: int, context_tokens: int) -> list[list[int]]:
        """The first `count` runs of `context_tokens`; each begins as the model's texts begin.

        Raises ConfigError where the text is too short, with the number of tokens that it has.
        """
        tokens = tokenizer.encode(self.characters, add_special_tokens=False)
        if len(tokens) < count * context_tokens:
            raise ConfigError(
                "--text",
                f"{self.name} has {len(tokens):,} tokens and {count} x {context_tokens:,} are "
                f"needed; {_what_fits(len(tokens), context_tokens)}",
            )
        first = list(tokenizer.prefix_ids)
        starts = range(0, count * context_tokens, context_tokens)
        return [first + tokens[at + len(first) : at + context_tokens] for at in starts]


def _what_fits(n_tokens: int, context_tokens: int) -> str:
    chunks = n_tokens // context_tokens
    if chunks:
        return f"give --chunks {chunks}"
    if n_tokens < LEAST_CONTEXT_TOKENS:
        return f"give a text of {LEAST_CONTEXT_TOKENS} or more"
    return f"give --context {n_tokens} --chunks 1"


def text_of(file: str | None, n_tokens: int) -> Text:
    """A person's file, or as much of the built-in text as holds `n_tokens` of any tokenizer."""
    if file is not None:
        path = Path(file).expanduser()
        with reading(path):
            data = path.read_bytes()
        try:
            return Text(path.name, data.decode())
        except UnicodeDecodeError as error:
            raise ConfigError("--text", f"{file} is not text in UTF-8: {error}") from error
    from pydoc_data.topics import topics

    whole = "\n".join(text for _, text in sorted(topics.items()))
    version = ".".join(platform.python_version_tuple()[:2])
    return Text(f"Python {version}'s help topics", whole[: n_tokens * _CHARACTERS_PER_TOKEN])


def filler(tokens: Sequence[int], n_tokens: int) -> list[int]:
    """`n_tokens` of a text, from its start again where it ends."""
    return [tokens[i % len(tokens)] for i in range(n_tokens)]
