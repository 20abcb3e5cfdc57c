"""A trace of requests: sizes, times, and which blocks of their prompts are the same.

    block_ids    | 7 | 8 | 9 |  rest      one id for each `block_tokens` tokens of the prompt
    prompt       |...|...|...|.....|      equal ids at equal places: equal tokens; the rest is new

The format is recognised by what the file holds: one file of `formats` each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from holdover.errors import HoldoverError
from holdover.files import existing_path, reading
from holdover.plan.sizing.text import one_line
from holdover.registry import load_all

_FORMATS = "holdover.simulate.formats"
_LONGEST_LINE_BYTES = 256 << 20
Ids = NDArray[np.int32]
Line = tuple[int, str]
"""Number, from 1, and text."""
Advance = Callable[[int, int], None]


class TraceError(HoldoverError):
    """A trace, or one line of it, that cannot be read."""

    def __init__(self, name: str, line: int | None, reason: str) -> None:
        where = name if line is None else f"{name}, line {line}"
        super().__init__(one_line(f"{where}: {reason}"))
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Request:
    """`arrival_s` counts from the trace's begin; of a closed loop from its conversation's.

    `after` names requests of the trace that must have ended, and how long ago: then it is sent.
    """

    prompt_tokens: int
    output_tokens: int
    block_ids: Ids
    conversation: int
    arrival_s: float
    after: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """`block_tokens` is None where nothing says which tokens are the same."""

    name: str
    format: str
    block_tokens: int | None
    requests: tuple[Request, ...]
    n_conversations: int
    is_closed_loop: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer."""
        return max((r.prompt_tokens + r.output_tokens for r in self.requests), default=0)

    def first(self, n_requests: int) -> Trace:
        """Its first requests, which wait for none of the others."""
        requests = self.requests[:n_requests]
        n_conversations = len({request.conversation for request in requests})
        return replace(self, requests=requests, n_conversations=n_conversations)

    def repeats(self) -> tuple[int, int]:
        """Blocks that an unbounded cache has from requests before, in the order of the trace, and
        all blocks."""
        highest = max(int(request.block_ids.max(initial=0)) for request in self.requests)
        seen = np.zeros(1 + highest, bool)
        n_repeated = 0
        for request in self.requests:
            known = seen[request.block_ids]
            n_repeated += len(known) if known.all() else int(known.argmin())
            seen[request.block_ids] = True
        return n_repeated, sum(len(request.block_ids) for request in self.requests)


class FormatModule(Protocol):
    """What a format's file offers."""

    NAME: str  # for people

    def recognises(self, first: str) -> bool:
        """By the first line that is not empty."""

    def read(self, name: str, lines: Iterator[Line]) -> Trace:
        """Raises TraceError with the number of the line."""


def read_trace(text: str) -> Trace:
    """The trace in a file. Raises HoldoverError for one that cannot be read or has no request."""
    path = existing_path(text, "trace")
    if path is None:
        raise TraceError(text, None, "no such file")
    if path.is_dir():
        raise TraceError(text, None, "is a folder; name a file in it")
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(path.name, None, "is empty")
    module = _format_of(path.name, first)

    def all_lines() -> Iterator[Line]:
        yield first
        yield from lines

    trace = module.read(path.name, all_lines())
    if not trace.requests:
        raise TraceError(path.name, None, "has no request")
    return trace


def _format_of(name: str, first: Line) -> FormatModule:
    modules = cast(dict[str, FormatModule], load_all(_FORMATS)).values()
    for module in modules:
        if module.recognises(first[1]):
            return module
    known = "; ".join(module.NAME for module in modules)
    raise TraceError(name, first[0], f"is no trace of a known format: {known}")


def _lines(path: Path) -> Iterator[Line]:
    """Without the empty ones."""
    with reading(path), path.open("rb") as file:
        number = 0
        while raw := file.readline(_LONGEST_LINE_BYTES):
            number += 1
            if len(raw) == _LONGEST_LINE_BYTES:
                raise TraceError(path.name, number, "is longer than any request")
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise TraceError(path.name, number, f"is no UTF-8: {error.reason}") from error
            if text:
                yield number, text
