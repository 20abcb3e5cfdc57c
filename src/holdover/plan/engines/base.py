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

    `kv` is the text of --kv; `room_bytes` what a device has for the cache, where one was named,
    `weights_bytes` and `memory_bytes` its part of the weights and its memory.
    """

    model: ModelMemory
    config: Mapping[str, Any]
    kv: str
    users: int
    context_tokens: int
    n_devices: int = 1
    room_bytes: int | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    weights_bytes: int = 0
    memory_bytes: int = 0

    def pool_bytes(self, share: Option) -> int | None:
        """What an engine that takes `share` of a device makes its pool of: what its weights leave
        of that, and no more than the room. Its own activations, measured at start, come off."""
        if self.room_bytes is None:
            return None
        of_share = int(self.memory_bytes * share) - self.weights_bytes
        return max(0, min(self.room_bytes, of_share) if self.memory_bytes else self.room_bytes)

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


NEAREST = {
    "int8": "fp8", "q8_0": "fp8", "int4": "fp8", "q4_0": "fp8", "q4_1": "fp8", "q5_0": "fp8",
    "q5_1": "fp8",
}  # fmt: skip


def cache_type_flags(engine: str, kv: str, types: Mapping[str, str]) -> list[str]:
    """The flags that make `engine` store `kv`, of a table of them by codec; a codec that it does
    not have is refused, with those that it has."""
    if kv not in types:
        nearest = f"; the nearest is {NEAREST[kv]}" if kv in NEAREST else ""
        raise ConfigError(
            "--kv", f"{engine} has no cache type {kv!r}; it has: {', '.join(types)}{nearest}"
        )
    return [types[kv]] if types[kv] else []


def beyond_model(request: Request, what: str) -> tuple[str, ...]:
    """What has to be said of conversations longer than the model's own limit."""
    limit = request.model.max_context_tokens
    if limit is None or request.context_tokens <= limit:
        return ()
    return (f"{request.context_tokens:,} tokens are beyond the model's own {limit:,}: {what}",)


class EngineModule(Protocol):
    NAME: str
    SPLITS_HEADS: bool  # whether its sizes are of one of several devices, or of all together
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
