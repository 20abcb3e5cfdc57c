"""What an engine's file offers: from a request to the buffers that engine would allocate.

`NAME` is how people write it, `OPTIONS` its switches with their defaults. Bytes still come from
`spec.memory`; an engine's file only says how many rows of what type it sets aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from holdover.errors import ConfigError
from holdover.geometry.sizing import ModelMemory
from holdover.geometry.sizing.names import TEXT_PARTS
from holdover.registry import load_all

Option = int | float | bool


@dataclass(frozen=True, slots=True)
class Request:
    """`users` conversations of `context_tokens` on one of `n_devices` tensor-parallel ranks.

    `kv` is the text of --kv; `room_bytes` what a device has for the cache, where one was named.
    """

    model: ModelMemory
    config: Mapping[str, Any]
    kv: str
    users: int
    context_tokens: int
    n_devices: int = 1
    room_bytes: int | None = None
    options: Mapping[str, Option] = field(default_factory=dict)

    def text_field(self, name: str) -> Any:
        """A field of the text model's config; None where it has none."""
        parts = [self.config, *(self.config.get(part) for part in TEXT_PARTS)]
        found = [part[name] for part in parts if isinstance(part, Mapping) and name in part]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Buffer:
    """One thing that is allocated: `cells` rows in each of `layers` layers."""

    what: str
    cells: int
    layers: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """`bytes_per_token` is what one more token costs as the engine counts; `pool_tokens` how many
    it would print for the room of the device."""

    buffers: tuple[Buffer, ...]
    bytes_per_token: int | None
    pool_tokens: int | None
    flags: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        return sum(buffer.n_bytes for buffer in self.buffers)


class EngineModule(Protocol):
    NAME: str
    OPTIONS: Mapping[str, Option]

    def reserve(self, request: Request) -> Reservation: ...


def find_engine(text: str) -> tuple[EngineModule, dict[str, Option]]:
    """ "llama.cpp:ubatch=2048,unified" as the engine and all its options."""
    modules = (cast(EngineModule, m) for m in load_all(__package__ or "").values())
    engines = {module.NAME: module for module in modules}
    name, _, switches = text.partition(":")
    if name.strip().lower() not in engines:
        raise ConfigError("--engine", f"{name!r} is not known; there are: {', '.join(engines)}")
    engine = engines[name.strip().lower()]
    options = dict(engine.OPTIONS)
    for item in filter(None, switches.split(",")):
        key, equals, value = item.strip().partition("=")
        if key not in options:
            known = ", ".join(options)
            raise ConfigError("--engine", f"{engine.NAME} has no option {key!r}; it has: {known}")
        options[key] = _value(item, options[key], value if equals else None)
    return engine, options


def _value(item: str, default: Option, text: str | None) -> Option:
    if isinstance(default, bool):
        if text in (None, "true", "false"):
            return text != "false"
        raise ConfigError("--engine", f"{item!r}: is on or off; write it alone, or =false")
    try:
        value = type(default)(text or "")
    except ValueError:
        raise ConfigError("--engine", f"{item!r}: needs a number") from None
    most = 1 if isinstance(default, float) else 10**9  # the fractions are all shares
    if not 0 < value <= most:  # NaN neither
        raise ConfigError("--engine", f"{item!r}: must be more than 0, and at most {most:,}")
    return value
