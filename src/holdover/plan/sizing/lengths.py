"""Conversations of different lengths: how many users fit with 99 % probability.

A distribution is a list of lengths with probabilities. The bytes that n users hold together are
the n-fold convolution of one conversation's bytes; n is the largest for which the cache's room is
kept with the probability asked for.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import exp, gcd, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from holdover.errors import ConfigError, ModelFileError
from holdover.files import existing_path, reading, typed_path
from holdover.geometry.sizing import Assumption
from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.question import MOST
from holdover.plan.sizing.scenario import Scenario
from holdover.units import ceil_div

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROBABILITY = 0.99
STEPS = 2**16
MOST_STEPS = 2**18
METHOD = "n-fold convolution of one conversation's held bytes"

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)
_TAIL = 1e-9  # probability of the lengths past which a lognormal is cut
_GROWTH = 1.002  # of a length to the next, where blocks are finer than that
_LARGEST_CSV_BYTES = 64 << 20
_TOLERANCE = 0.05  # of a mean that no lognormal has with the p95 that goes with it


@dataclass(frozen=True, slots=True)
class Lengths:
    """`tokens` in ascending order, each with its probability."""

    text: str
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    notes: tuple[Assumption, ...] = ()

    @property
    def mean_tokens(self) -> float:
        pairs = zip(self.tokens, self.probabilities, strict=True)
        return sum(n * probability for n, probability in pairs)

    def quantile(self, probability: float) -> int:
        sums = list(accumulate(self.probabilities))
        return self.tokens[min(bisect_left(sums, probability - 1e-12), len(self.tokens) - 1)]


@dataclass(frozen=True, slots=True)
class LengthsAnswer:
    """`max_users` is None where no device was named; bytes are of one rank where one was."""

    lengths: Lengths
    mean_bytes: float
    max_users: int | None
    max_users_of_mean: int | None
    exact: bool
    probability: float = PROBABILITY

    @property
    def method(self) -> str:
        if self.exact:
            return f"{METHOD}, exact in steps of a block"
        return f"{METHOD}, in {STEPS:,} steps of the room; sizes between two steps are split"

    @property
    def notes(self) -> tuple[Assumption, ...]:
        return self.lengths.notes


def parse_lengths(text: str, asked_context: int | None, model_context: int | None) -> Lengths:
    """ "lognormal:mean=4000,p95=12000" or a CSV file. Lengths past `asked_context` end there; so
    do they at the model's own limit, unless even the p95 is beyond it."""
    if text.startswith("lognormal:"):
        return _lognormal(text, asked_context, model_context)
    path = existing_path(text, "--lengths")
    if path is None and ":" in text:
        raise ConfigError("--lengths", f"{text!r}: give lognormal:mean=4000,p95=12000 or a file")
    return _from_csv(path or typed_path(text, "--lengths"), asked_context)


def answer_lengths(lengths: Lengths, cache: Cache, scenario: Scenario | None) -> LengthsAnswer:
    held_by = cache if scenario is None else scenario.rank_cache
    shared = 0 if scenario is None else scenario.shared_tokens
    # A shared start is there once: each conversation adds what it holds beside it.
    held = [held_by.own_bytes(n, shared) for n in lengths.tokens]
    mean = sum(b * p for b, p in zip(held, lengths.probabilities, strict=True))
    if scenario is None:
        return LengthsAnswer(lengths, mean, None, None, True)
    room = scenario.cache_room_bytes - held_by.shared_bytes(lengths.tokens[-1], shared)
    users = max_users(held, lengths.probabilities, room, PROBABILITY)
    of_mean = int(room // mean) if room > 0 and mean else 0
    exact = room <= 0 or Grid.of(held, room).exact
    return LengthsAnswer(lengths, mean, users, of_mean, exact)


def max_users(
    held_bytes: Sequence[int], probabilities: Sequence[float], room_bytes: int, probability: float
) -> int:
    """Most conversations that together stay within `room_bytes` with `probability`."""
    mean = sum(b * p for b, p in zip(held_bytes, probabilities, strict=True))
    if room_bytes <= 0 or mean <= 0:
        return 0
    grid = Grid.of(held_bytes, room_bytes)
    powers = [grid.one(held_bytes, probabilities)]
    limit = int(room_bytes // min(b for b in held_bytes if b)) + 1
    while _within(powers[-1]) >= probability and 2 ** len(powers) <= limit:
        powers.append(_convolved(powers[-1], powers[-1]))
    users, total = 0, None
    for k in reversed(range(len(powers))):  # the largest number, bit by bit
        more = powers[k] if total is None else _convolved(total, powers[k])
        if users + 2**k <= limit and _within(more) >= probability:
            users, total = users + 2**k, more
    return users


@dataclass(frozen=True, slots=True)
class Grid:
    """The room in equal steps. Exact where a step is a common divisor of all sizes, as whole
    blocks have one; else each size is split between two steps so that its mean stays, and the
    answer may be off by one user."""

    room_bytes: int
    step_bytes: Fraction
    n_steps: int
    exact: bool

    @classmethod
    def of(cls, held_bytes: Sequence[int], room_bytes: int) -> Grid:
        common = gcd(*held_bytes)
        if common and room_bytes // common <= MOST_STEPS:
            return cls(room_bytes, Fraction(common), room_bytes // common, True)
        return cls(room_bytes, Fraction(room_bytes, STEPS), STEPS, False)

    def one(self, held_bytes: Sequence[int], probabilities: Sequence[float]) -> NDArray[np.float64]:
        """Probability of each step for one conversation; what is over the room is left out."""
        import numpy as np

        one = np.zeros(self.n_steps + 1)
        for n_bytes, probability in zip(held_bytes, probabilities, strict=True):
            if n_bytes > self.room_bytes:
                continue
            lower, rest = divmod(n_bytes, self.step_bytes)
            share = float(rest / self.step_bytes)
            one[int(lower)] += probability * (1 - share)
            if share:
                one[int(lower) + 1] += probability * share
        return one


def _within(sizes: NDArray[np.float64]) -> float:
    """Probability of staying within the room, but for the rounding of the transform, which is far
    below any probability asked for."""
    return float(sizes.sum()) + 1e-9


def _convolved(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the steps within the room; sums only grow, so nothing beyond comes back."""
    import numpy as np

    enough = len(a) + len(b) - 1
    unit = 1 << max(0, enough.bit_length() - 4)
    size = ceil_div(enough, unit) * unit  # at most 16 times a power of two: quick to transform
    of_a = np.fft.rfft(a, size)
    product = np.fft.irfft(of_a * (of_a if b is a else np.fft.rfft(b, size)), size)
    return np.maximum(product[: len(a)], 0.0)


def _lognormal(text: str, asked_context: int | None, model_context: int | None) -> Lengths:
    values = _fields(text.removeprefix("lognormal:"), text)
    middle, p95 = values.get("mean", values.get("median", 0.0)), values["p95"]
    if p95 <= middle:
        name = "mean" if "mean" in values else "median"
        raise ConfigError("--lengths", f"{text!r}: p95 must be more than the {name}")
    notes: tuple[Assumption, ...] = ()
    if "median" in values:
        sigma = log(p95 / middle) / _Z95
    else:
        sigma, notes = _sigma(middle, p95, text)
    mu = log(p95) - _Z95 * sigma
    limit = asked_context or (model_context if model_context and model_context >= p95 else None)
    longest = min(MOST, round(exp(min(40.0, mu - sigma * _NORMAL.inv_cdf(_TAIL)))))
    edges = _edges(min(limit, longest) if limit else longest)
    below = [_NORMAL.cdf((log(n) - mu) / sigma) for n in edges]
    below[-1] = 1.0  # whatever is longer ends there
    probabilities = [b - a for a, b in zip([0.0, *below], below, strict=False)]
    if limit is not None:
        note = "--context" if asked_context else "the model's own limit"
        notes += (Assumption("longest conversation", f"{limit} tokens", note),)
    elif model_context:
        note = f"the p95 is beyond the model's own {model_context} tokens: nothing is cut off there"
        notes += (Assumption("longest conversation", f"{longest} tokens", note),)
    return Lengths(text, tuple(edges), tuple(probabilities), notes)


def _sigma(mean: float, p95: float, text: str) -> tuple[float, tuple[Assumption, ...]]:
    """Of the lognormal with this mean and p95, the narrower of the two where there are two."""
    root = _Z95**2 - 2 * log(p95 / mean)
    if root >= 0:
        return _Z95 - sqrt(root), ()
    # The widest ratio is exp(z^2/2) = 3.87, at sigma = z: the least mean that this p95 can have.
    least_mean = p95 * exp(-(_Z95**2) / 2)
    median = f"lognormal:median={mean:g},p95={p95:g}"
    if least_mean > mean * (1 + _TOLERANCE):
        raise ConfigError(
            "--lengths",
            f"{text!r}: no lognormal has a p95 of more than 3.87 times its mean; with this p95 "
            f"the mean is at least {least_mean:,.0f}. Give that, a median ({median}), or a CSV "
            "file of lengths",
        )
    note = (
        f"no lognormal has mean {mean:,.0f} and p95 {p95:,.0f}: the p95 is kept, with the least "
        f"mean that goes with it; if a median was meant, give {median}"
    )
    return _Z95, (Assumption("mean of --lengths", f"{least_mean:,.0f} tokens", note),)


def _fields(text: str, whole: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise ConfigError("--lengths", f"{whole!r}: {item!r} has no number") from None
    known = set(found) in ({"mean", "p95"}, {"median", "p95"})
    if not known or not all(1 <= v <= MOST for v in found.values()):
        raise ConfigError(
            "--lengths", f"{whole!r}: give mean and p95, or median and p95, each at least 1 token"
        )
    return found


def _edges(longest: int) -> list[int]:
    """Upper ends of classes of lengths, closely spaced; a length counts as its class's end."""
    edges = [1]
    while edges[-1] < longest:
        edges.append(min(longest, max(edges[-1] + 1, int(edges[-1] * _GROWTH))))
    return edges


def _from_csv(path: Path, asked_context: int | None) -> Lengths:
    """Token counts in the column "tokens" or "length", or in the first one."""
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            if path.stat().st_size > _LARGEST_CSV_BYTES:
                raise ConfigError("--lengths", f"{path} is too large for a list of lengths")
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except ModelFileError as error:
        raise ConfigError("--lengths", str(error)) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("--lengths", f"{path} cannot be read: {error}") from error
    if not rows:
        raise ConfigError("--lengths", f"{path} is empty")
    column, start = 0, 0
    if not _is_number(rows[0][0]) or len(rows[0]) > 1:
        head = [cell.strip().lower() for cell in rows[0]]
        named = [i for i, name in enumerate(head) if name in ("tokens", "length", "lengths")]
        column = named[0] if named else 0
        start = 0 if _is_number(rows[0][column]) else 1
    counts: dict[int, int] = {}
    for number, row in enumerate(rows[start:], start + 1):
        if column >= len(row) or not _is_number(row[column]) or float(row[column]) < 1:
            raise ConfigError("--lengths", f"{path}, row {number}: {','.join(row)!r} has no length")
        n_tokens = round(float(row[column]))
        n_tokens = min(n_tokens, asked_context) if asked_context else n_tokens
        counts[n_tokens] = counts.get(n_tokens, 0) + 1
    if not counts:
        raise ConfigError("--lengths", f"{path} has a heading and no lengths")
    total = sum(counts.values())
    tokens = tuple(sorted(counts))
    shares = tuple(counts[n] / total for n in tokens)
    return Lengths(f"{total:,} lengths of {path.name}", tokens, shares)


def _is_number(text: str) -> bool:
    try:
        return float(text) < 1e12
    except ValueError:
        return False
