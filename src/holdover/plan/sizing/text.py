"""Plain tables: aligned columns of text, quick to make and the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = Sequence[str]


def table(columns: Row, rows: Iterable[Row]) -> list[str]:
    """Lines of a table; columns starting with ">" are right-aligned, the others left."""
    right = [column.startswith(">") for column in columns]
    head = [column.removeprefix(">") for column in columns]
    body = [head, *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(head))]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in body]


def _cells(row: Row, widths: Sequence[int], right: Sequence[bool]) -> Iterable[str]:
    for text, width, to_right in zip(row, widths, right, strict=True):
        yield text.rjust(width) if to_right else text.ljust(width)


_LONGEST_LINE = 2000  # characters


def printable(value: Any) -> Any:
    """JSON with every text of it safe to print: names in a file may hold line breaks, terminal
    controls, or halves of characters, which are written as escapes."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_escaped, value))
    if isinstance(value, list):
        return [printable(one) for one in value]
    if isinstance(value, dict):
        return {key: printable(one) for key, one in value.items()}
    return value


def one_line(message: str) -> str:
    """A message on one line of bearable length, whatever value it quotes."""
    text = str(printable(message))
    if len(text) <= _LONGEST_LINE:
        return text
    half = _LONGEST_LINE // 2
    return f"{text[:half]} ... {text[-half:]}"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
