"""Flags against `Config`, and what a person sees when something is wrong."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from holdover.cli.app import build_app
from holdover.cli.options import config_command, field_help, plain_command
from holdover.codecs.base import codec_names
from holdover.config import Config
from holdover.errors import BudgetError
from holdover.registry import plugin_names


def parameters(command: str) -> dict[str, Any]:
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    return {parameter.name: parameter for parameter in commands[command].params}


def default_of(parameter: Any) -> Any:
    """As `Config` has it: a flag that may be repeated gathers a list."""
    default = parameter.default
    return tuple(default) if isinstance(default, list) else default


def test_serve_has_a_flag_for_every_setting_with_its_default() -> None:
    found = parameters("serve")
    for field in fields(Config):
        assert default_of(found[field.name]) == field.default


@pytest.mark.parametrize("command", ["plan", "chat"])
def test_other_commands_take_their_defaults_from_the_same_place(command: str) -> None:
    defaults = {field.name: field.default for field in fields(Config)}
    shared = {n: p for n, p in parameters(command).items() if n in defaults}
    assert {"model", "kv_memory", "memory", "kv", "block_tokens", "max_context"} <= set(shared)
    assert {name: default_of(p) for name, p in shared.items()} == {n: defaults[n] for n in shared}


def test_every_setting_has_a_help_text() -> None:
    assert set(field_help()) == {field.name for field in fields(Config)}
    result = CliRunner().invoke(build_app(), ["serve", "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0
    assert "Eviction policy of cached blocks" in result.output


def app_of(raised: BaseException | None = None) -> tuple[typer.Typer, list[Any]]:
    app, seen = typer.Typer(), []
    app.callback()(lambda: None)

    @config_command(app, "go", ("model", "port", "kv_memory", "api_keys"))
    def go(config: Config, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Go."""
        seen.append((config, loud))
        if raised is not None:
            raise raised

    @plain_command(app, "plain")
    def plain(number: int = 3) -> None:
        """Plain."""
        seen.append(number)

    return app, seen


def test_values_reach_the_configuration_and_own_options_the_command() -> None:
    app, seen = app_of()
    arguments = ["go", "x.gguf", "--port", "9", "--api-key", "a", "--api-key", "b", "--loud"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [(Config(model="x.gguf", port=9, api_keys=("a", "b")), True)]
    assert CliRunner().invoke(app, ["plain", "--number", "4"]).exit_code == 0
    assert seen[1:] == [4]


def test_keys_may_come_from_the_environment() -> None:
    app, seen = app_of()
    for text in ("one two", "one,two", " one, two,\n"):
        CliRunner().invoke(app, ["go"], env={"HOLDOVER_API_KEYS": text})
        assert seen.pop()[0].api_keys == ("one", "two"), text
    given = ["go", "--api-key", "three"]
    CliRunner().invoke(app, given, env={"HOLDOVER_API_KEYS": "one two"})
    assert seen.pop()[0].api_keys == ("three",)
    # Set and empty is a mistake in a script, not a wish to serve anyone.
    result = CliRunner().invoke(app, ["go"], env={"HOLDOVER_API_KEYS": " , "})
    assert (result.exit_code, seen) == (2, [])
    assert "HOLDOVER_API_KEYS: is set and holds no key" in result.stderr
    assert "HOLDOVER_API_KEYS, separated by commas or spaces" in " ".join(help_of("serve").split())


def help_of(*command: str) -> str:
    return CliRunner().invoke(build_app(), [*command, "--help"], env={"COLUMNS": "80"}).output


def test_help_is_whole_at_80_columns_and_lists_what_may_be_given() -> None:
    assert "..." not in help_of().partition("Commands:")[2]
    assert "SIGTERM" in help_of("serve")
    text = " ".join(help_of("serve").split())
    for values in (
        "[auto|fp32|bf16]",
        f"[{'|'.join(['auto', *plugin_names('holdover.kernels')])}]",
        f"[{'|'.join(plugin_names('holdover.cache.eviction'))}]",
        f"One of {', '.join(codec_names())}.",
        "--api-key <key>",
    ):
        assert values in text
    assert "without it and --memory" in text
    assert "..." not in help_of("bench").partition("Commands:")[2]
    assert "--input-words" in help_of("bench", "single")
    assert "--assume <field=value>" in help_of("plan")
    short = CliRunner().invoke(build_app(), ["serve", "-h"], env={"COLUMNS": "80"})
    assert (short.exit_code, short.output) == (0, help_of("serve"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["go", "--kv-memory", "much"], "holdover: --kv-memory: 'much' is not a size"),
        (["go", "--port", "99999"], "holdover: --port: 99999"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app_of()[0], arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_errors_for_people_and_interrupts_have_their_exit_codes() -> None:
    result = CliRunner().invoke(app_of(BudgetError("too small"))[0], ["go"])
    assert (result.exit_code, result.stderr) == (2, "holdover: too small\n")
    assert CliRunner().invoke(app_of(KeyboardInterrupt())[0], ["go"]).exit_code == 130


def test_a_bug_keeps_its_traceback() -> None:
    result = CliRunner().invoke(app_of(ZeroDivisionError())[0], ["go"])
    assert isinstance(result.exception, ZeroDivisionError)
