"""Azure's public traces of LLM inference: times and lengths, and nothing about what is the same.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

So nothing can be reused. Source: Patel et al., "Splitwise", ISCA 2024; AzurePublicDataset.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from holdover.simulate.formats.base import MOST_S, MOST_TOKENS
from holdover.simulate.trace import Line, Request, Trace, TraceError

NAME = "Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens)"
_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_FRACTION = re.compile(r"(\.\d{6})\d+")


def recognises(first: str) -> bool:
    return {*_COLUMNS} <= {*_header(first)}


def read(name: str, lines: Iterator[Line]) -> Trace:
    header = _header(next(lines)[1])
    places = [header.index(column) for column in _COLUMNS]
    rows = sorted(_row(name, n, text, places) for n, text in lines)
    begin_s = rows[0][0] if rows else 0.0
    if rows and rows[-1][0] - begin_s > MOST_S:
        raise TraceError(name, None, "its first and last TIMESTAMP are more than 30 years apart")
    none = np.zeros(0, np.int32)
    requests = tuple(
        Request(n_prompt, n_output, none, index, at_s - begin_s)
        for index, (at_s, n_prompt, n_output) in enumerate(rows)
    )
    return Trace(name, "azure", None, requests, len(requests), False)


def _header(line: str) -> list[str]:
    return [cell.strip().lower() for cell in line.split(",")]


def _row(name: str, number: int, text: str, places: list[int]) -> tuple[float, int, int]:
    try:
        cells = next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise TraceError(name, number, f"is no CSV: {error}") from error
    if len(cells) <= max(places):
        raise TraceError(name, number, f"has {len(cells)} columns; {max(places) + 1} are needed")
    time, n_prompt, n_output = (cells[place].strip() for place in places)
    return (
        _seconds(name, number, time),
        _tokens(name, number, "ContextTokens", n_prompt, 1),
        _tokens(name, number, "GeneratedTokens", n_output, 0),
    )


def _seconds(name: str, number: int, text: str) -> float:
    try:
        found = datetime.fromisoformat(_FRACTION.sub(r"\1", text))
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise TraceError(name, number, f"TIMESTAMP {text[:40]!r} is no date and time") from error


def _tokens(name: str, number: int, column: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or not least <= int(text[:20]) <= MOST_TOKENS:
        reason = f"{column} is {text[:40]!r}, no whole number from {least} to {MOST_TOKENS:,}"
        raise TraceError(name, number, reason)
    return int(text)
