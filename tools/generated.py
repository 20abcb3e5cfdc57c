"""The command line of a tool that writes one checked-in table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def main(
    tool: str, description: str, table: Path, text_of: Callable[[Path], str], folder: str | None
) -> int:
    """Write the table, or with --check only say whether it is up to date (1 where it is not).

    `folder` describes the tool's argument, the folder that `text_of` reads; None for none.
    """
    parser = argparse.ArgumentParser(description=description)
    if folder is not None:
        parser.add_argument("folder", type=Path, help=folder)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args()
    text = text_of(getattr(options, "folder", table.parent))
    if options.check:
        same = table.exists() and table.read_text() == text
        print("up to date" if same else f"{table.name} differs: run tools/{tool}")
        return 0 if same else 1
    table.write_text(text)
    print(f"{table}: {len(text)} bytes, {text.count(chr(10))} lines")
    return 0
