"""From flags to what is simulated: a trace, a setup, and sizes of the arena."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdover.cache.tiers._open import parse_tiers
from holdover.cache.tiers.base import TierSpec
from holdover.config import Config, at_least_one
from holdover.errors import BudgetError, ConfigError
from holdover.files import typed_path, write_text
from holdover.plan.sizing.accelerated import find_device
from holdover.plan.sizing.device import Device
from holdover.plan.sizing.question import Question
from holdover.registry import check_plugin
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import Subject, read_subject
from holdover.simulate.run import Setup
from holdover.simulate.trace import Trace, read_trace
from holdover.units import MOST_BYTES, format_bytes, largest, parse_bytes

_MIB = 2**20
PLAIN_BLOCK_TOKENS = 64  # where the trace has no blocks of its own
_BLOCKS_A_PROMPT = 100  # finer ones cost time, and hits differ by less than a hundredth


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of `holdover simulate` that are not the engine's."""

    trace: str
    model: str
    kv_memory: tuple[str, ...]
    memory: tuple[str, ...]
    gpu: str
    headroom: str
    weights: str | None
    assume: tuple[str, ...]
    block_tokens: int | None
    max_context: int | None
    prefill_tokens_per_s: float | None
    decode_ms: float | None
    ram_bandwidth: str | None
    disk_bandwidth: str | None
    speed: float
    users: int | None
    requests: int | None
    csv: str | None
    html: str | None

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_context", "users", "requests"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        if not 0 < self.speed < math.inf:  # NaN neither
            raise ConfigError("--speed", f"{self.speed} is not above 0")
        if self.kv_memory and self.memory:
            raise ConfigError("--memory", "give either --kv-memory or --memory, not both")

    @property
    def html_path(self) -> Path:
        assert self.html is not None
        return typed_path(self.html, "--html")

    def write_csv(self, text: str) -> None:
        """Raises ConfigError where the file cannot be written."""
        assert self.csv is not None
        write_text(typed_path(self.csv, "--csv"), text, "--csv")


@dataclass(frozen=True, slots=True)
class Prepared:
    """`sizes` as they were asked for, and in bytes of the arena."""

    trace: Trace
    setup: Setup
    sizes: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


def prepare(config: Config, asked: Asked) -> Prepared:
    """Raises HoldoverError naming the flag, the file or the line."""
    tiers = tuple(_tiers(config.tiers))
    check_plugin("holdover.cache.eviction", config.eviction, "--eviction")
    device = find_device(asked.gpu)
    links = LinkCosts.of(
        _rate(asked.ram_bandwidth, "--ram-bandwidth"),
        _rate(asked.disk_bandwidth, "--disk-bandwidth"),
    )
    trace = read_trace(asked.trace)
    if asked.requests is not None:
        trace = trace.first(asked.requests)
    if asked.users is not None and not trace.is_closed_loop:
        raise ConfigError("--users", f"requests of {trace.name} come at times of their own")
    block_tokens = asked.block_tokens or default_block_tokens(trace)
    question = Question(weights=asked.weights, assume=asked.assume)
    subject = read_subject(asked.model, question, config.kv, block_tokens)
    costs = StepCosts.of(device, subject.weights, asked.prefill_tokens_per_s, asked.decode_ms)
    setup = Setup(
        subject,
        costs,
        links,
        tiers,
        eviction=config.eviction,
        max_sequences=config.max_sequences,
        step_tokens=config.step_tokens,
        max_context_tokens=asked.max_context,
        speed=asked.speed,
        n_users=asked.users,
    )
    sizes = tuple(_sizes(asked, subject, device))
    return Prepared(trace, setup, sizes, tuple(_warnings(trace, subject, asked.max_context)))


def default_block_tokens(trace: Trace) -> int:
    """The trace's own blocks; as many of them in one as leave its mean prompt enough of them."""
    own = trace.block_tokens or PLAIN_BLOCK_TOKENS
    mean = trace.prompt_tokens // len(trace.requests)
    n_doubled = (mean // (own * _BLOCKS_A_PROMPT)).bit_length() - 1
    return own << max(0, n_doubled)


def _sizes(asked: Asked, subject: Subject, device: Device) -> list[tuple[str, int]]:
    """The smallest first, each once."""
    if asked.kv_memory:
        found = {text: parse_bytes(text, "--kv-memory") for text in _several(asked.kv_memory)}
    else:
        of_device = format_bytes(device.memory_bytes).replace(" ", "")
        memory = asked.memory or (of_device,)
        found = {text: _room_bytes(text, asked, subject) for text in _several(memory)}
    for text, arena_bytes in found.items():
        if arena_bytes < subject.layout.sector_bytes:
            raise BudgetError(_no_block(text, asked, subject))
    return sorted(found.items(), key=lambda item: item[1])


def _no_block(text: str, asked: Asked, subject: Subject) -> str:
    """What is wrong with this size, and the least that holds a block."""
    block_bytes = subject.layout.sector_bytes
    block = format_bytes(block_bytes)
    if asked.kv_memory:
        return f"--kv-memory {text} leaves no room for one block; the least is {block}"

    def too_small(mib: int) -> bool:
        room_bytes = subject.room_bytes(mib * _MIB, asked.headroom)
        return room_bytes is not None and room_bytes < block_bytes

    least_mib = largest(too_small, MOST_BYTES // _MIB) + 1
    flag = f"--memory {text}" if asked.memory else f"--gpu {asked.gpu}: {text}"
    return (
        f"{flag} leaves no room beside weights and headroom for one block, which takes {block}; "
        f"give --memory {least_mib}MiB or more"
    )


def _room_bytes(text: str, asked: Asked, subject: Subject) -> int:
    room_bytes = subject.room_bytes(parse_bytes(text, "--memory"), asked.headroom)
    if room_bytes is None:
        raise ConfigError(
            "--memory", "holds weights too, and nothing says how large they are: give --kv-memory, "
            "or --weights 16GB",
        )  # fmt: skip
    return room_bytes


def _several(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",")]


def _tiers(texts: Iterable[str]) -> tuple[TierSpec, ...]:
    """No folder is touched, and a disk tier need not name one."""
    named = []
    for text in texts:
        kind, *rest = text.split(":")
        if kind == "disk" and len(rest) == 1:
            parse_bytes(rest[0], "--tiers")  # first: an error would show the folder put in
            text = f"disk:.:{rest[0]}"
        named.append(text)
    return parse_tiers(named)


def _rate(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_bytes(text.removesuffix("/s"), flag)


def _warnings(trace: Trace, subject: Subject, max_context: int | None) -> Iterable[str]:
    limit = subject.max_context_tokens
    if limit is None or (max_context is not None and max_context <= limit):
        return
    n_longer = sum(r.prompt_tokens + r.output_tokens > limit for r in trace.requests)
    if n_longer:
        yield (
            f"{n_longer:,} of {len(trace.requests):,} requests are longer than the {limit:,} "
            f"tokens that {subject.name} was made for, and are served all the same; "
            f"--max-context {limit} refuses them"
        )
