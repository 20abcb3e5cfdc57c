"""`holdover doctor`: whether tiers keep their promises, and a directory what it should hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.options import plain_command
from holdover.units import format_bytes

if TYPE_CHECKING:
    from holdover.cache.tiers.base import TierSpec

SELF_TEST_BYTES = 4 << 20


def register(app: typer.Typer) -> None:
    @plain_command(app, "doctor")
    def doctor(
        tiers: Annotated[
            list[str],
            typer.Argument(metavar="TIER...", help="As for --tiers: ram:2GiB, disk:/path:20GiB."),
        ],
    ) -> None:
        """Test tiers: are tenants apart, and a folder in order?

        Permissions, checksums and size are those of a disk tier's folder. Blocks of a test lie in
        a folder of their own, next to what is there; nothing else is written, but that a folder
        that is not there is made. Exit code 1 where something is wrong.
        """
        from holdover.cache.tiers._open import parse_tiers

        problems: list[str] = []
        for spec in parse_tiers(tiers):
            lines, found = _examine(spec)
            print("\n".join(lines + [f"{spec.kind}: PROBLEM: {text}" for text in found]))
            problems += found
        if problems:
            raise typer.Exit(1)


def _examine(spec: TierSpec) -> tuple[list[str], list[str]]:
    """What is in order, and what is not."""
    from holdover.cache.selftest import problems_of, small_layout
    from holdover.cache.tiers._open import open_tiers
    from holdover.kernels._transcoding import transcoder

    lines: list[str] = []
    found: list[str] = []
    if spec.path is not None:
        lines, found = _examine_folder(spec.path, spec.cap_bytes)
    with _apart(spec) as own:
        layout = small_layout()
        apart = problems_of(
            lambda identity: open_tiers(
                [own], layout, identity, lambda stored: transcoder(layout, {}, stored, {})
            )[0]
        )
    if not apart:
        lines.append(f"{spec.kind}: tenants, weights and servers find only what is theirs")
    return lines, found + apart


def _examine_folder(path: str, cap_bytes: int) -> tuple[list[str], list[str]]:
    from holdover.cache.tiers._disk.audit import audit

    try:
        seen = audit(path, cap_bytes)
    except FileNotFoundError:
        return [f"disk: {path} is not there yet"], []
    except OSError as error:
        return [], [f"{path} cannot be read: {error.strerror or error}"]
    line = (
        f"disk: {path} holds {format_bytes(seen.held_bytes)} of {format_bytes(cap_bytes)}: "
        f"{seen.segments} segments, {seen.blocks} blocks"
    )
    return [line], seen.problems


@contextmanager
def _apart(spec: TierSpec) -> Iterator[TierSpec]:
    """The same tier, small, where nobody else's blocks are; on the same disk."""
    small = replace(spec, cap_bytes=SELF_TEST_BYTES)
    if spec.path is None:
        yield small
        return
    from holdover.cache.tiers._disk.directory import Directory
    from holdover.cache.tiers._disk.files import Files

    Directory(spec.path, spec.cap_bytes, Files()).prepare()
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=spec.path) as folder:
        yield replace(small, path=folder)
