"""The command line: one file per command, flags and defaults from `Config`."""

from holdover.cli.app import main

__all__ = ["main"]
