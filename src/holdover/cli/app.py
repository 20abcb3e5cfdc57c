"""The `holdover` command. Commands import what they need when they run, so `--help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import holdover
from holdover.cli import bench, chat, doctor, inspect, plan, quality, serve, simulate


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="holdover",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True, help=holdover.__doc__)(_version_option)
    for command in (plan, simulate, serve, chat, inspect, quality, bench, doctor):
        command.register(app)
    return app


def main() -> None:
    build_app()(prog_name="holdover")


def _version_option(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"holdover {holdover.__version__}")
        raise typer.Exit
