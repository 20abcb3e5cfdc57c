"""Reading the parts that lists of layers are written in: counts, kinds, numbers of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.names import KINDS
from holdover.geometry.sizing.reader import Reader

LARGEST_MODEL = 4096  # layers

Kinds = tuple[str, ...]
PatternReader = Callable[[Reader, int], Kinds | None]
"""(config, number of layers) -> the kind of each layer; None where the config does not say it"""


def layer_count(reader: Reader) -> int:
    """The number of layers; the length of a stated list of layers where no number is stated."""
    if not reader.states(*names.LAYERS):
        for name in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
            called = reader.values.get(name)
            if isinstance(called, list | str) and called:
                reader.note(names.LAYERS[0], len(called), f"length of {name}")
                reader.ignore(*names.LAYERS)
                return credible(reader, name, len(called))
    return credible(reader, names.LAYERS[0], reader.integer(*names.LAYERS))


def credible(reader: Reader, name: str, n_layers: int) -> int:
    """`n_layers`, refused where no model has so many: nothing is ever laid out for them."""
    if n_layers > LARGEST_MODEL:
        raise reader.wrong(name, f"{n_layers} layers are more than any model's")
    return n_layers


def slides(reader: Reader) -> bool:
    """Whether windows are in use at all."""
    if reader.get("use_sliding_window") is False:
        reader.ignore(*names.WINDOW, "max_window_layers")
        return False
    window = reader.get(*names.WINDOW)
    silent = not any(name in reader.values for name in names.WINDOW)
    if window is None and silent and "sliding_window" in reader.defaults:
        reader.note("sliding_window", "none", reader.defaults_source)
    return window is not None


def listed(reader: Reader, name: str, n_layers: int, strict: bool = True) -> list[Any] | None:
    """A list with one entry per layer. Where `strict`, further entries are of MTP layers."""
    value = reader.get(name)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) < n_layers:
        raise reader.wrong(name, f"must be a list with an entry for each of {n_layers} layers")
    stated = [reader.values.get(name) for name in names.MTP_COUNTS]
    further = sum(count for count in stated if isinstance(count, int))
    if strict and len(value) > n_layers + further:
        raise reader.wrong(name, f"has {len(value)} entries for {n_layers} layers")
    return list(value[:n_layers])


def kind_of(reader: Reader, name: str, called: Any) -> str:
    if not isinstance(called, str) or called not in KINDS:
        raise reader.wrong(name, f"{called!r} is a kind of layer that is not known")
    return KINDS[called]


def layer_numbers(
    reader: Reader, name: str, numbers: Any, n_layers: int, first: int = 0
) -> frozenset[int]:
    """Layer numbers counted from `first`, as a set counted from 0."""
    if not isinstance(numbers, list | tuple):
        raise reader.wrong(name, f"{numbers!r} is not a list of layer numbers")
    found = [reader.as_integer(number, name, first) - first for number in numbers]
    if len(set(found)) != len(found) or any(number >= n_layers for number in found):
        raise reader.wrong(name, f"must name different layers below {n_layers + first}")
    return frozenset(found)
