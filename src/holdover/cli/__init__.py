"""The command line: one file per command, flags and defaults from `Config`."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """The `holdover` command; `plan` answers before the parser of the others is imported."""
    from holdover.cli.planning import quick_plan

    if isinstance(sys.stdout, TextIOWrapper):  # a model's name may need more than ASCII
        sys.stdout.reconfigure(errors="backslashreplace")
    if quick_plan(sys.argv[1:]):
        return
    from holdover.cli.app import main

    main()


__all__ = ["main"]
