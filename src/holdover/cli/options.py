"""Flags made from `Config`'s fields: name, type, default and help text stand there and only there.

A command is a function of a `Config` and its own options. `config_command` gives typer a function
that has one flag per field asked for, and turns what a person should read into one line on stderr:
exit code 2 for a HoldoverError, 130 for Ctrl-C, never a traceback.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer

from holdover.config import Config, flag
from holdover.errors import HoldoverError

PLAN_FIELDS = (
    "model", "kv_memory", "memory", "kv", "dtype", "backend", "block_tokens", "max_sequences",
    "step_tokens", "max_context",
)  # fmt: skip
ENGINE_FIELDS = ("eviction", "threads")
SERVER_FIELDS = ("served_name", "host", "port", "api_keys", "grace_s")

_API_KEYS_VARIABLE = "HOLDOVER_API_KEYS"  # a key on the command line is seen by everyone


def config_command(
    app: typer.Typer, name: str, config_fields: tuple[str, ...]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(config, **own options)` as a command with flags for `config_fields`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**values: Any) -> None:
            settings = {field: values.pop(field) for field in config_fields}
            if "api_keys" in settings:
                settings["api_keys"] = tuple(settings["api_keys"])
            with people_errors():
                function(Config.of(settings), **values)

        parameters = [_parameter(field) for field in config_fields]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        _register(app, name, run, parameters, function.__doc__)
        return function

    return register


def plain_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that needs no `Config`, with the same handling of errors."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            with people_errors():
                function(**values)

        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        _register(app, name, run, parameters, function.__doc__)
        return function

    return register


@contextmanager
def people_errors() -> Iterator[None]:
    try:
        yield
    except HoldoverError as error:
        print(f"holdover: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@cache
def field_help() -> dict[str, str]:
    """The text under each field of `Config`, which Python itself does not keep."""
    tree = ast.parse(inspect.getsource(sys.modules[Config.__module__]))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Config")
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _parameter(name: str) -> inspect.Parameter:
    field = next(field for field in fields(Config) if field.name == name)
    hint = get_type_hints(Config)[name]
    default: Any = field.default
    if name == "model":
        info: Any = typer.Argument(help=field_help()[name])
    elif name == "api_keys":
        hint, default = list[str], list(default)
        info = typer.Option(
            "--api-key", help=field_help()[name], envvar=_API_KEYS_VARIABLE, show_default=False
        )
    else:
        info = typer.Option(flag(name), help=field_help()[name])
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


def _register(
    app: typer.Typer,
    name: str,
    run: Callable[..., None],
    parameters: list[inspect.Parameter],
    help_text: str | None,
) -> None:
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(name, help=inspect.cleandoc(help_text or ""))(run)
