"""Which settings are flags of which command, without the library that parses them.

`parse` reads plain command lines in the time that Python needs to start: the library takes longer
to import than a plan takes to make. Whatever it does not understand is left to the library, which
has the messages and the help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from holdover.config import Config, flag
from holdover.errors import ConfigError

MODEL_FIELDS = ("model",)
PLAN_FIELDS = (
    "kv_memory", "memory", "kv", "dtype", "backend", "block_tokens", "max_sequences",
    "step_tokens", "max_context", "threads", "tiers", "prompt_ends", "sparse_blocks",
)  # fmt: skip
ENGINE_FIELDS = (
    "weights",
    "eviction",
    "share_prefixes",
    "window",
    "sinks",
    "reservation",
)  # `plan` has its own --weights, which takes more, and its own --window and --sinks
SERVER_FIELDS = (
    "served_name", "host", "port", "api_keys", "max_waiting_requests", "grace_s", "log_requests",
)  # fmt: skip

_CONVERSIONS = {"str": str, "int": int, "float": float}


@dataclass(frozen=True, slots=True)
class Flag:
    """`kind` is "str", "int", "float", "bool", or "many" for a flag that may be repeated."""

    field: str
    kind: str
    default: Any


def flags_of(settings: type, names: Sequence[str] | None = None) -> dict[str, Flag]:
    """Flags of a dataclass's fields, by the text that is typed."""
    found = {}
    for field in fields(settings):
        if names is None or field.name in names:
            hint = str(field.type).removesuffix(" | None")
            kind = "many" if hint.startswith("tuple[str") else hint
            found[flag(field.name)] = Flag(field.name, kind, field.default)
    return found


def parse(arguments: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any] | None:
    """Every field's value, `model` among them; None where the library should have its say."""
    try:
        return parse_strictly(arguments, flags)
    except ConfigError:
        return None


def parse_strictly(arguments: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any] | None:
    """The same, with a ConfigError for what no parser would take."""
    values = {f.field: f.default for f in flags.values()}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            positional.append(argument)
            continue
        name, equals, value = argument.partition("=")
        if name in ("-", "--", "--help", "-h"):
            return None
        if name not in flags:
            raise ConfigError(name, f"no such flag; {_near(name, flags)}--help lists them")
        known = flags[name]
        if known.kind == "bool":
            if equals:
                return None
            values[known.field] = True
            continue
        text = value if equals else next(rest, None)
        if text is None:
            raise ConfigError(name, "needs a value")
        if not equals and text.startswith("-"):
            return None
        if known.kind == "many":
            values[known.field] = (*values[known.field], text)
            continue
        try:
            values[known.field] = _CONVERSIONS[known.kind](text)
        except ValueError:
            whole = "whole " if known.kind == "int" else ""
            raise ConfigError(name, f"{text!r} is not a {whole}number") from None
    if len(positional) > 1:
        raise ConfigError(positional[1], f"is one model too many beside {positional[0]}")
    values["model"] = positional[0] if positional else _default_model()
    return values


def _near(name: str, flags: Mapping[str, Flag]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, flags, n=2)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _default_model() -> str:
    return next(str(field.default) for field in fields(Config) if field.name == "model")
