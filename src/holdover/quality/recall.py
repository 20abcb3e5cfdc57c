"""Facts placed through a long context and asked for at its end.

    filler | The code word of Anna is river. | filler | The code word of Boris is ... | question

An answer is right if, of all the facts' values, the asked one's is the most likely next token: so
it is right by chance one time in FACTS. All questions go on from one context, through the prefix
cache, as the turns of a conversation do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from holdover.errors import ConfigError
from holdover.quality.forced import ForcedCache
from holdover.quality.text import filler
from holdover.text.tokenizer import Tokenizer

FACTS = 32
_NAMES = """
    Anna Boris Carla David Elena Frank Grace Henry Irene James Karen Louis Maria Nigel Olga Peter
    Rachel Simon Teresa Ursula Victor Wendy Xavier Yvonne Zoe Albert Bruno Cecil Dora Edgar Flora
    Gustav"""
_VALUES = """
    river table window garden engine bridge silver orange pencil mirror castle forest bottle
    candle basket rabbit ladder pocket tunnel hammer carpet island button camera guitar helmet
    jacket kettle lemon magnet needle oyster parrot quilt rocket saddle tiger umbrella violin
    wagon anchor barrel circle desert elephant feather glove harbor insect jungle"""


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked: `context` with all facts in it, and each fact's question and answer."""

    context: list[int]
    questions: list[list[int]]
    answers: list[int]  # first tokens of the values

    @property
    def n_tokens(self) -> int:
        """Of the longest question's sequence."""
        return len(self.context) + max(map(len, self.questions))


def make_probe(tokenizer: Tokenizer, text: Sequence[int], context_tokens: int) -> Probe:
    """A probe of `context_tokens` with `text` between the facts.

    Raises ConfigError where the facts alone are longer.
    """

    def plain(words: str) -> list[int]:
        return tokenizer.encode(words, add_special_tokens=False)

    known = [f"\nThe code word of {name} is" for name in _NAMES.split()]
    values = _apart(plain(f" {value}") for value in _VALUES.split())
    if len(values) < FACTS:
        raise ConfigError(
            "--recall", "this model's tokenizer begins different words with the same token, so one "
            "token does not tell answers apart; give 0 to leave the probe out",
        )  # fmt: skip
    facts = [
        [*plain(start), *value, *plain(".\n")]
        for start, value in zip(known, values[:FACTS], strict=True)
    ]
    questions = [plain(start) for start in known]
    room = context_tokens - len(tokenizer.prefix_ids) - max(map(len, questions))
    spare = room - sum(map(len, facts))
    if spare < 0:
        raise ConfigError(
            "--recall", f"{context_tokens} tokens are too few for {FACTS} facts; give "
            f"{context_tokens - spare} or more, or 0 to leave the probe out",
        )  # fmt: skip
    between = filler(text, spare)
    context = list(tokenizer.prefix_ids)
    for index, fact in enumerate(facts):
        context += between[spare * index // FACTS : spare * (index + 1) // FACTS]
        context += fact
    return Probe(context, questions, [value[0] for value in values[:FACTS]])


@dataclass(frozen=True, slots=True)
class Recalled:
    """`right` is the share of answers that are; `tops` the most likely token of all after each."""

    right: float
    tops: tuple[int, ...]

    def same_top(self, other: Recalled) -> float:
        """How often the most likely token is the other's."""
        return sum(a == b for a, b in zip(self.tops, other.tops, strict=True)) / len(self.tops)


def recalled(cache: ForcedCache, probe: Probe) -> Recalled:
    """The questions are computed as generated tokens, which may read less than prompts do."""
    sequence = cache.open(probe.context)
    cache.feed_all(sequence, probe.context)
    cache.close(sequence, keep=True)
    right = 0
    tops: list[int] = []
    at_once = cache.step_tokens // max(map(len, probe.questions))
    for start in range(0, len(probe.questions), at_once):
        asked = []
        for question in probe.questions[start : start + at_once]:
            tokens = probe.context + question
            sequence = cache.open(tokens)
            assert sequence.n_tokens >= len(probe.context), "the context was to be found"
            asked.append((sequence, tokens[sequence.n_tokens :]))
        logits = cache.feed(asked, n_scored=1, n_prompt=len(probe.context))
        tops += logits.argmax(-1).tolist()
        best = logits[:, probe.answers].argmax(-1)
        right += int((best == torch.arange(start, start + len(asked))).sum())
        for sequence, _ in asked:
            cache.close(sequence, keep=True)
    cache.manager.evict()
    return Recalled(right / len(probe.answers), tuple(tops))


def _apart(values: Iterable[list[int]]) -> list[list[int]]:
    """Those whose first tokens differ, so that one token tells them apart."""
    found: dict[int, list[int]] = {}
    for value in values:
        found.setdefault(value[0], value)
    return list(found.values())
