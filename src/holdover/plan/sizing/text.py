"""Plain tables: aligned columns of text, quick to make and the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
