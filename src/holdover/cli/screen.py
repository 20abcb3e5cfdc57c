"""Where output goes: results to stdout, what is going on to stderr; plain and quiet in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120  # columns of tables that no terminal limits


def stdout_console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def warn(warnings: Iterable[str]) -> None:
    """On stderr, so that results stay clean."""
    for text in warnings:
        print(f"holdover: warning: {text}", file=sys.stderr, flush=True)


Advance = Callable[[int, int], None]
"""Called with (done, total) as work goes on."""


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """A bar on stderr from the first advance to the end; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with ExitStack() as shown:
        update: Advance | None = None

        def advance(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = _show_bar(shown, title)
            update(done, total)

        yield advance


def _show_bar(shown: ExitStack, title: str) -> Advance:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

    columns = (f"{title:<16}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    progress = shown.enter_context(Progress(*columns, console=stderr_console(), transient=True))
    task = progress.add_task(title, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)
