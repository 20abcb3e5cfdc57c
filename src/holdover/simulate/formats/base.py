"""What the formats have in common: fields that are checked, and ids as small whole numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdover.simulate.trace import Ids, TraceError

MOST_TOKENS = 1 << 24  # of one request
MOST_S = 1e9  # thirty years


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a line; errors name the line and the field."""

    name: str
    line: int
    values: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, line: int, text: str) -> Fields:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(name, line, f"is no JSON: {error}") from error
        return cls.within(name, line, values)

    @classmethod
    def within(cls, name: str, line: int, values: Any) -> Fields:
        if not isinstance(values, dict):
            raise TraceError(name, line, f"{_shown(values)} is no object with fields")
        return cls(name, line, values)

    def error(self, reason: str) -> TraceError:
        return TraceError(self.name, self.line, reason)

    def whole(self, key: str, least: int = 0, most: int = MOST_TOKENS) -> int:
        value = self._get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{key} is {_shown(value)}, no whole number")
        if not least <= value <= most:
            raise self.error(f"{key} is {_shown(value)}; it goes from {least} to {most:,}")
        return value

    def seconds(self, key: str, unit_s: float = 1.0, default: float | None = None) -> float:
        """`default` stands for a field that is missing or null."""
        value = self._get(key) if default is None else self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{key} is {_shown(value)}, no number")
        try:
            time_s = float(value) * unit_s
        except OverflowError:
            time_s = math.inf
        if not 0 <= time_s <= MOST_S:  # NaN neither
            raise self.error(f"{key} is {_shown(value)}, no time of a trace")
        return time_s

    def items(self, key: str) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is {_shown(value)}, no list")
        return value

    def _get(self, key: str) -> Any:
        if key not in self.values:
            raise self.error(f"lacks {key}")
        return self.values[key]


@dataclass(slots=True)
class SmallIds:
    """Whatever stands for blocks in a file, as 1, 2, 3 ... in the order in which they come."""

    _known: dict[Any, int] = field(default_factory=dict)

    def of(self, ids: Iterable[Any]) -> Ids:
        known = self._known
        return np.array([known.setdefault(i, len(known) + 1) for i in ids], np.int32)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
