"""Bytes as people write them, and whole numbers: rounding that says which way, and a search."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from holdover.errors import ConfigError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {
    "": 1, "B": 1,
    "K": 2**10, "KIB": 2**10, "KB": 10**3,
    "M": 2**20, "MIB": 2**20, "MB": 10**6,
    "G": 2**30, "GIB": 2**30, "GB": 10**9,
    "T": 2**40, "TIB": 2**40, "TB": 10**12,
}  # fmt: skip
GIB = 2**30
MOST_BYTES = 2**63 - 1
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, field: str = "size") -> int:
    """Parse "256MiB", "1.5GB" or "1048576" (binary for KiB/K, decimal for KB) to bytes."""
    match = _PATTERN.fullmatch(text)
    factor = _FACTORS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise ConfigError(field, f"{text!r} is not a size; write it as 256MiB, 2GiB or 500MB")
    n_bytes = int(Decimal(match.group(1)) * factor)
    if n_bytes > MOST_BYTES:
        raise ConfigError(field, f"{text[:40]!r} is more than any machine has")
    return n_bytes


def format_bytes(n_bytes: int) -> str:
    """Format for reading: 368640 -> "360.0 KiB". Exact counts belong beside it, not in it."""
    value = float(n_bytes)
    for unit in _BINARY:
        if abs(value) < 1024 or unit == _BINARY[-1]:
            return f"{n_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


def exact_div(numerator: int, denominator: int) -> int:
    """Divide where a remainder would be a bug."""
    quotient, remainder = divmod(numerator, denominator)
    assert remainder == 0, f"{numerator} is not a multiple of {denominator}"
    return quotient


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Largest n in 0..limit with fits(n), where fits is true up to some point; fits(0) is given.

    Asks for small n first: a limit far above the answer costs little.
    """
    high = 1
    while high < limit and fits(high):
        high *= 2
    low, high = high // 2, min(high, limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
