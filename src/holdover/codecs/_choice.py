"""How `--kv` is read: which codec each layer and plane is stored with.

    int8                    everything
    k=int8,v=int4           keys and values apart; what is not named stays bf16
    int4,0-1=bf16           all in int4, but for layers 0 and 1
    int4,k=int8,k@0-3=bf16  the narrowest rule that names a plane and layer decides

    latent=int4,rope=bf16   of a model with latents, its two planes apart

"v" are the planes of that name, "k" all others: latents lie among the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdover.errors import ConfigError
from holdover.spec.layers import Plane
from holdover.spec.layout import FieldCodec

UNNAMED = "bf16"
_PLANES = ("latent", "rope")  # with a name of their own beside "k"
_WHERE = re.compile(r"(?:(k|v|latent|rope)@)?(\d+)(?:-(\d+))?|(k|v|latent|rope)")
_HELP = "give one codec, or parts such as k=int8,v=int4 or int4,0-1=bf16,k@2=int8"


@dataclass(frozen=True, slots=True)
class Rule:
    """`codec` for some planes ("k", "v", one of _PLANES, or any) of layers first..last (or all)."""

    codec: FieldCodec
    plane: str | None = None
    layers: range | None = None

    def covers(self, layer: int, plane: str) -> bool:
        named = self.plane in (None, plane, "v" if plane == "v" else "k")
        return named and (self.layers is None or layer in self.layers)

    @property
    def narrowness(self) -> tuple[bool, int]:
        plane = 0 if self.plane is None else 1 + (self.plane in _PLANES)
        return self.layers is not None, plane


@dataclass(frozen=True, slots=True)
class KvChoice:
    """A `CodecChoice`; `name` is what a person gave."""

    name: str
    rules: tuple[Rule, ...]  # the narrowest first

    def __call__(self, layer: int, plane: Plane) -> FieldCodec:
        return next(rule.codec for rule in self.rules if rule.covers(layer, plane.name))

    @property
    def of_planes(self) -> tuple[str, str] | None:
        """Codecs of keys and of values; None where layers or other planes differ."""
        if any(rule.layers is not None or rule.plane in _PLANES for rule in self.rules):
            return None
        key, value = (next(r.codec.name for r in self.rules if r.covers(0, p)) for p in "kv")
        return key, value

    def demand_planes(self, planes: Iterable[Plane]) -> None:
        """Refuse a rule for planes that a model has not."""
        names = sorted({plane.name for plane in planes})
        known = {*names, *("k" for name in names if name != "v")}
        for rule in self.rules:
            if rule.plane is not None and rule.plane not in known:
                raise ConfigError(
                    "--kv",
                    f"{self.name!r} names {rule.plane}; this model stores {' and '.join(names)}",
                )

    def demand_layers(self, n_layers: int) -> None:
        """Refuse a rule for layers that a model has not."""
        for rule in self.rules:
            if rule.layers is not None and rule.layers[-1] >= n_layers:
                raise ConfigError(
                    "--kv",
                    f"{self.name!r} names layer {rule.layers[-1]}; "
                    f"this model's go from 0 to {n_layers - 1}",
                )


def parse_choice(text: str, find_codec: Callable[[str], FieldCodec]) -> KvChoice:
    """Raises ConfigError for what cannot be read, and for two rules of one place."""
    rules = [_rule(text, part.strip(), find_codec) for part in text.split(",")]
    places = [(rule.plane, rule.layers) for rule in rules]
    if len(set(places)) < len(places):
        raise ConfigError("--kv", f"{text!r} gives two codecs for one place; {_HELP}")
    if (None, None) not in places:
        rules.append(Rule(find_codec(UNNAMED)))
    rules.sort(key=lambda rule: rule.narrowness, reverse=True)
    return KvChoice(text, tuple(rules))


def _rule(text: str, part: str, find_codec: Callable[[str], FieldCodec]) -> Rule:
    where, equals, codec = (piece.strip() for piece in part.rpartition("="))
    if not equals:
        return Rule(find_codec(codec))
    found = _WHERE.fullmatch(where)
    if not found or not codec:
        raise ConfigError("--kv", f"{text!r}: {_HELP}")
    plane, first, last, only = found.groups()
    if only:
        return Rule(find_codec(codec), only)
    layers = range(int(first), int(last or first) + 1)
    if not layers:
        raise ConfigError("--kv", f"{text!r}: {where} holds no layer")
    return Rule(find_codec(codec), plane, layers)
