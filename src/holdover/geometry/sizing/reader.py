"""Reading one config: where each value is from, and which keys have been understood.

A value comes from `assume`, from the file, or from the class defaults of the model type, in that
order; whatever the file does not state is written down as an assumption. `null` in a file is a
value (the class default does not apply), and counts as "not given" where a number is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing.base import Assumption

LARGEST = 2**40  # no count of layers, heads, dims or tokens is larger


@dataclass(slots=True)
class Reader:
    """A config or a nested part of it. `where` is the path of the part, ending in a dot.

    `assumptions` and `used` are shared with the parts, and grow while the config is read.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    model_type: str
    assume: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    derived: frozenset[str] = frozenset()  # defaults that the class works out by a rule
    aliases: Mapping[str, str] = field(default_factory=dict)  # common name -> the class's own
    whole: Mapping[str, Any] = field(default_factory=dict)  # the config that this is the text of
    known: bool = True  # whether the mechanisms here are known to be those of the type
    installed: str | None = None  # the transformers that the defaults are from, if not the table
    assumptions: list[Assumption] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    @property
    def defaults_source(self) -> str:
        where = "" if self.installed is None else f" in transformers {self.installed}"
        return f"class default of {self.model_type}{where}"

    def get(self, *names: str) -> Any:
        """The value under the first of these names that has one, else None."""
        names = self._with_own(names)
        self.used.update(self.where + name for name in names)
        for name in names:
            if self._assumption(name) is not None:
                return self._assumed(name)
        stated = [name for name in names if self.values.get(name) is not None]
        if len({_frozen(self.values[name]) for name in stated}) > 1:
            raise self.wrong(stated[0], f"differs from {stated[1]}, which means the same")
        if stated:
            return self.values[stated[0]]
        if any(name in self.values for name in names):
            return None  # null in the file: the class default does not apply
        for name in names:
            if self.defaults.get(name) is not None:
                value = self.defaults[name]
                if value is not False:
                    self.note(name, value, self.defaults_source)
                return value
        return None

    def states(self, *names: str) -> bool:
        """Whether the file or `assume` gives a value under one of these names."""
        return any(
            self.values.get(n) is not None or self._assumption(n) is not None
            for n in self._with_own(names)
        )

    def knows(self, *names: str) -> bool:
        """Whether each of these names has a value, be it a default; notes nothing."""
        return all(
            self.states(name) or (name not in self.values and self.defaults.get(name) is not None)
            for name in names
        )

    def ignore(self, *names: str) -> None:
        """These names change nothing here: something else that was read decides."""
        self.used.update(self.where + name for name in self._with_own(names))

    def first_integer(self, *names: str) -> int | None:
        """The count under the first stated name, whatever the later ones say."""
        stated = [name for name in self._with_own(names) if self.states(name)]
        self.ignore(*names)
        return self.optional_integer(stated[0] if stated else names[0])

    def beneath(self, overrides: Mapping[str, Any]) -> Reader:
        """The same reader with other values on top, as for one layer."""
        return replace(self, values={**self.values, **overrides})

    def integer(self, *names: str, minimum: int = 1) -> int:
        value = self.optional_integer(*names, minimum=minimum)
        if value is None:
            raise self.missing(*names)
        return value

    def optional_integer(self, *names: str, minimum: int = 1) -> int | None:
        value = self.get(*names)
        return None if value is None else self.as_integer(value, names[0], minimum)

    def as_integer(self, value: Any, name: str, minimum: int = 1) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.wrong(name, f"{value!r} is not a whole number of at least {minimum}")
        if value > LARGEST:
            raise self.wrong(name, f"{value!r} is larger than any model's")
        return value

    def flag(self, *names: str) -> bool:
        """False where nothing is said."""
        value = self.get(*names)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(names[0], f"{value!r} is neither true nor false")
        return bool(value)

    def part(self, name: str) -> Reader | None:
        """A nested object that is read in the same way; its defaults are the class's own."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"{value!r} is not an object")
        return Reader(
            value, {}, self.model_type, self.assume, f"{self.where}{name}.",
            assumptions=self.assumptions, used=self.used,
        )  # fmt: skip

    def note(self, name: str, value: Any, source: str) -> None:
        """Write down a value that the file does not state."""
        text = value if isinstance(value, str) else repr(value)
        found = Assumption(self.where + name, text, source)
        if found not in self.assumptions:
            self.assumptions.append(found)

    def wrong(self, name: str, reason: str) -> ConfigError:
        return ConfigError(self.where + name, reason)

    def missing(self, *names: str) -> ConfigError:
        others = f" (also not as {', '.join(names[1:])})" if len(names) > 1 else ""
        return self.wrong(
            names[0],
            f"is missing{others}; the model cannot be sized without it. "
            f"Give it with --assume {names[0]}=VALUE",
        )

    def _assumption(self, name: str) -> str | None:
        return self.assume.get(self.where + name, self.assume.get(name))

    def _assumed(self, name: str) -> Any:
        text = self._assumption(name)
        if text is None:
            return None
        self.note(name, text, "--assume")
        return parse_value(text)

    def _with_own(self, names: tuple[str, ...]) -> tuple[str, ...]:
        own = (self.aliases[name] for name in names if name in self.aliases)
        return tuple(dict.fromkeys((*names, *own)))


def parse_value(text: str) -> Any:
    """The JSON value that a person wrote; a plain word is a text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _frozen(value: Any) -> str:
    return repr(value)
