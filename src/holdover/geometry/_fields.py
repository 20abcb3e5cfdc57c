"""Typed reading of a config's fields: what is missing or impossible is named, never a traceback.

A field that is absent takes its default; one that is there must have the right type. `null` counts
as absent except where a caller asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdover.errors import ConfigError, UnsupportedModelError
from holdover.geometry.base import Activation

MAX_SIZE = 2**31 - 1
"""Most of anything a config counts: what is larger is damage, and would overflow further on."""
_LEAST_NUMBER, _LARGEST_NUMBER = 1e-37, 1e38  # of fp32
MAX_LAYERS = 10_000  # each becomes an object, so the count alone must not fill the memory

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class Fields:
    """A config (or a part of it), with the defaults of its model type."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    where: str = ""

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        value = self.values.get(name)
        return self.defaults.get(name) if value is None else value

    def integer(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A positive whole number, at most `most`."""
        value = self._needed(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, f"{_shown(value)} is not a positive whole number")
        if value > most:
            raise self.wrong(name, f"{_shown(value)} cannot be right; the most is {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number that fp32, in which it is used, can hold."""
        value = self._needed(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.wrong(name, f"{_shown(value)} is not a positive number")
        if not _LEAST_NUMBER <= value <= _LARGEST_NUMBER:
            raise self.wrong(name, f"{_shown(value)} is out of range")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._needed(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{_shown(value)} is neither true nor false")
        return value

    def part(self, name: str) -> Mapping[str, Any] | None:
        """A nested object, or None where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, f"{_shown(value)} is not an object")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers; empty where there is none."""
        values = self.get(name)
        if values is None:
            return ()
        if not isinstance(values, list | tuple):
            raise self.wrong(name, f"{_shown(values)} is not a list of numbers")
        items = {f"{name}[{index}]": value for index, value in enumerate(values)}
        return tuple(Fields(items, {}, self.where).number(item) for item in items)

    def activation(self, name: str) -> Activation:
        value = self._needed(name, None)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise UnsupportedModelError(
                f"{name} {_shown(value)} is not supported; supported: {known}"
            )
        return _ACTIVATIONS[value]

    def wrong(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"model config field {self.where}{name}", reason)

    def _needed(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.wrong(name, "is missing; the model cannot be sized without it")
        return value


def read_heads(fields: Fields) -> tuple[int, int, int]:
    """(query heads, KV heads, head dim), checked against each other."""
    query_heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", query_heads)
    if query_heads % kv_heads:
        raise fields.wrong(
            "num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {query_heads}"
        )
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // query_heads)
    if head_dim % 2:
        raise fields.wrong("head_dim", f"{head_dim} is odd; rotary positions need pairs")
    return query_heads, kv_heads, head_dim


def layer_kinds(fields: Fields, n_layers: int) -> tuple[str, ...] | None:
    """The config's `layer_types`, or None; each is "full_attention" or "sliding_attention"."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list | tuple) or len(kinds) != n_layers:
        raise fields.wrong("layer_types", f"must be a list of num_hidden_layers = {n_layers} names")
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModelError(
            f"layer type {', '.join(unknown)} is not supported; "
            "supported: full_attention, sliding_attention"
        )
    return tuple(kinds)


def _shown(value: object) -> str:
    """Short enough for a message, whatever the file holds."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
