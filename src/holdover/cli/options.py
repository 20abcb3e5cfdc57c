"""Flags made from `Config`'s fields: name, type, default and help text stand there and only there.

A command is a function of a `Config` and its own options. `config_command` gives typer a function
that has one flag per field asked for, and turns what a person should read into one line on stderr:
exit code 2 for a HoldoverError, 130 for Ctrl-C, never a traceback.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer

from holdover.cli.flags import (
    ENGINE_FIELDS,
    MODEL_FIELDS,
    PLAN_FIELDS,
    SERVER_FIELDS,
    flags_of,
)
from holdover.codecs.base import codec_names
from holdover.config import DTYPES, RESERVATIONS, WEIGHTS, Config, flag, keys_of
from holdover.errors import HoldoverError
from holdover.plan.sizing.question import Question
from holdover.registry import plugin_names

__all__ = [
    "ENGINE_FIELDS",
    "MODEL_FIELDS",
    "PLAN_FIELDS",
    "SERVER_FIELDS",
    "config_command",
    "field_help",
    "people_errors",
    "plain_command",
    "plan_command",
    "values_command",
]

_SINGULAR = {"api_keys": "--api-key"}
_KEYS_VARIABLE = "HOLDOVER_API_KEYS"  # a key on the command line is seen by everyone


def config_command(
    app: typer.Typer, name: str, config_fields: tuple[str, ...]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(config, **own options)` as a command with flags for `config_fields`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**values: Any) -> None:
            settings = {field: values.pop(field) for field in config_fields}
            for field, value in settings.items():
                if isinstance(value, list):
                    settings[field] = tuple(value)
            with people_errors():
                if settings.get("api_keys") == () and _KEYS_VARIABLE in os.environ:
                    settings["api_keys"] = keys_of(os.environ[_KEYS_VARIABLE])
                function(Config.of(settings), **values)

        parameters = [_parameter(field) for field in config_fields]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        _register(app, name, run, parameters, function.__doc__)
        return function

    return register


def plan_command(
    app: typer.Typer, name: str, config_fields: tuple[str, ...]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(settings, asked, **own options)`: `Config`'s fields and `Question`'s."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[2:]
        asked_fields = [flag.field for flag in flags_of(Question).values()]

        def run(**values: Any) -> None:
            settings = {field: values.pop(field) for field in config_fields}
            asked = {field: values.pop(field) for field in asked_fields}
            asked = {k: tuple(v) if isinstance(v, list) else v for k, v in asked.items()}
            with people_errors():
                function(settings, asked, **values)

        parameters = [_parameter(field) for field in config_fields]
        parameters += [_parameter(field, Question) for field in asked_fields]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        _register(app, name, run, parameters, function.__doc__)
        return function

    return register


def values_command(
    app: typer.Typer, name: str, defaults: Any, help_text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(asked, **own options)`: a dataclass's fields, with `defaults`' values."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        asked_fields = [field.name for field in fields(defaults)]

        def run(**values: Any) -> None:
            asked = {field: values.pop(field) for field in asked_fields}
            with people_errors():
                function(asked, **values)

        parameters = [
            _parameter(field, type(defaults)).replace(default=getattr(defaults, field))
            for field in asked_fields
        ]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        _register(app, name, run, parameters, help_text)
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
def field_help(settings: type = Config) -> dict[str, str]:
    """The text under each field of `settings`, which Python itself does not keep."""
    tree = ast.parse(inspect.getsource(sys.modules[settings.__module__]))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == settings.__name__
    )
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _parameter(name: str, settings: type = Config) -> inspect.Parameter:
    field = next(field for field in fields(settings) if field.name == name)
    hint = get_type_hints(settings)[name]
    default: Any = field.default
    metavar, values = _values(name) if settings is Config else (_METAVARS.get(name), "")
    help_text = inspect.cleandoc(field_help(settings)[name]) + values
    if name == "model":
        info: Any = typer.Argument(help=help_text)
    elif isinstance(default, tuple):  # may be repeated, and is named in the singular
        hint, default = list[str], list(default)
        info = typer.Option(
            _SINGULAR.get(name, flag(name)), help=help_text, metavar=metavar, show_default=False
        )
    else:
        info = typer.Option(flag(name), help=help_text, metavar=metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


_METAVARS = {
    "api_keys": "<key>",
    "assume": "<field=value>",
    "gpu": "<name>",
    "html": "<file>",
    "tiers": "<kind:size>",
}
_PACKAGES = {"backend": "holdover.kernels", "eviction": "holdover.cache.eviction"}


def _values(name: str) -> tuple[str | None, str]:
    """What stands for a setting's value in the help, and what is added to its text."""
    if name in ("memory", "kv_memory"):
        return "<size>", " As 256MiB."
    if name == "kv":
        return "<codec>", f" One of {', '.join(codec_names())}."
    if name == "dtype":
        return f"[{'|'.join(DTYPES)}]", ""
    if name == "weights":
        return f"[{'|'.join(WEIGHTS)}]", ""
    if name == "reservation":
        return f"[{'|'.join(RESERVATIONS)}]", ""
    if name in _PACKAGES:
        chosen = ["auto"] if name == "backend" else []
        return f"[{'|'.join([*chosen, *plugin_names(_PACKAGES[name])])}]", ""
    return _METAVARS.get(name), ""


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
