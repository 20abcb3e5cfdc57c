"""Deterministic text: the same seed gives the same requests on every machine."""

from __future__ import annotations

import random

# Common short words: one token each, leading space included, in usual vocabularies.
_WORDS = """
    time year people way day man thing woman life child world school state family student
    group country problem hand part place case week company system program question work night
    point home water room mother area money story fact month lot right study book eye job word
    business issue side kind head house service friend father power hour game line
""".split()  # noqa: SIM905


def prompt_text(seed: int, index: int | str, n_words: int) -> str:
    """`n_words` words for request `index`; two indices share no long prefix."""
    choose = random.Random(f"{seed}:{index}").choice
    return " ".join(choose(_WORDS) for _ in range(n_words))
