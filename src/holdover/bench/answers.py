"""Whether answers are text: a server is fast at nothing when it writes rubbish.

Each answer by itself is one of

- `empty`: it has tokens and no visible character;
- `broken`: replacement or control characters in it (the last one may have been cut off);
- `one_character`: 16 characters or more of at most two kinds, as NaN logits give ("!!!!!!!!");
- `loops`: zlib makes a tenth of it or less of 200 bytes or more. Small models do that when they may
  not end, so it is counted and is no fault.

And some prompts are sent again at the end, alone: temperature is 0, so an answer that was given
under load and from a used cache must begin as the one given alone. Servers whose sums depend on the
batch leave it where two tokens nearly tie, hence a share in common and not equality; an answer is
`unlike` if it differs within its first UNLIKE_WORDS words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from holdover.bench.client import Sample
from holdover.bench.session import Asked, Asker

FAULTS = ("empty", "broken", "one_character")
UNLIKE_WORDS = 4
_BROKEN = re.compile(r"[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Again:
    """Answers beside those of the same prompt asked alone."""

    asked: int = 0
    equal: int = 0
    unlike: int = 0
    least_common: float = 1.0  # share of words before the first difference, the worst of all


def kind_of(sample: Sample) -> str:
    """`fine`, or what is odd about its text."""
    text = (sample.reasoning + sample.text).strip()
    if sample.output_tokens and not text:
        return "empty"
    if _BROKEN.search(text[:-1]):
        return "broken"
    if len(text) >= 16 and len(set(text.replace(" ", ""))) <= 2:
        return "one_character"
    raw = text.encode()
    if len(raw) >= 200 and len(zlib.compress(raw)) <= len(raw) / 10:
        return "loops"
    return "fine"


def common_share(one: str, other: str) -> float:
    """Of the longer one's words, those before the first difference."""
    words, others = one.split(), other.split()
    return _n_common(words, others) / max(1, len(words), len(others))


def spread_out(asked: Sequence[Asked], count: int) -> list[Asked]:
    """`count` of those that were answered, from the first to the last."""
    good = [each for each in asked if each.sample.error is None]
    if len(good) <= count:
        return good
    return [good[round(i * (len(good) - 1) / max(1, count - 1))] for i in range(count)]


async def ask_again(asker: Asker, count: int) -> Again:
    """One after the other, what the workload asked; not part of what is measured."""
    pairs = []
    for each in spread_out(asker.asked, count):
        alone = await asker.session.send(each.messages, each.sample.asked_tokens, asker.seed)
        asker.on_request()
        if alone.error is None:
            pairs.append((each.sample.text, alone.text))
    return compared(pairs)


def compared(pairs: Sequence[tuple[str, str]]) -> Again:
    shares = [common_share(one, other) for one, other in pairs]
    unlike = [
        _n_common(one.split(), other.split()) < min(UNLIKE_WORDS, len(one.split()))
        for one, other in pairs
    ]
    equal = sum(one == other for one, other in pairs)
    return Again(len(pairs), equal, sum(unlike), min(shares, default=1.0))


def _n_common(words: Sequence[str], others: Sequence[str]) -> int:
    pairs = zip(words, others, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
