"""What a workload is: a frozen dataclass whose fields are flags, with a coroutine for a repetition.

Flags are made of workloads, so nothing here or beside it imports what drives them before it is run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from holdover.config import at_least_one, flag
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.bench.client import Sample
    from holdover.bench.session import Asker

FEW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured together; `x` is its place on a chart's axis, if it has one."""

    name: str
    samples: Sequence[Sample]
    x: float | None = None
    line: str = ""  # of the chart
    fresh: bool = False  # the server should not have had these prompts in its cache


class Workload(Protocol):
    """A frozen dataclass; `headline` are the figures to compare servers by (`stats`)."""

    @property
    def about(self) -> str: ...
    @property
    def repeats(self) -> int: ...
    @property
    def headline(self) -> tuple[str, ...]: ...
    @property
    def x_label(self) -> str: ...
    @property
    def n_requests(self) -> int:
        """Of one repetition."""
        ...

    async def once(self, asker: Asker, repetition: int) -> list[Part]: ...


def numbers(text: str, name: str) -> list[int]:
    """`text` as 1,4,16. Raises ConfigError with the flag of the field `name`."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(flag(name), f"{text!r} is no list of numbers, as 1,4,16 is") from error
    for number in found:
        at_least_one(name, number)
    return found


def rates(text: str | None) -> list[float]:
    """Requests a second, as 0.5,1,2. Raises ConfigError."""
    try:
        found = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError as error:
        raise ConfigError("--rate", f"{text!r} is no list of rates, as 0.5,1,2 is") from error
    for rate in found:
        if not 0 < rate < math.inf:
            raise ConfigError("--rate", f"{rate} is not above 0")
    return found


def either_streams_or_rate(workload: Any) -> None:
    """Raises ConfigError where a rate was given, and streams that it would leave unused."""
    [default] = (item.default for item in fields(workload) if item.name == "streams")
    if workload.rate is not None and workload.streams != default:
        raise ConfigError("--streams", "give either --streams or --rate, not both")


def check_numbers(workload: object, names: Sequence[str] | None = None) -> None:
    """Every whole number of a workload is at least 1."""
    for item in fields(workload):  # type: ignore[arg-type]
        value = getattr(workload, item.name)
        if type(value) is int and (names is None or item.name in names):
            at_least_one(item.name, value)
