"""A workload on one or more servers in turn: A B, A B, as often as it is repeated.

What disturbs the machine for minutes disturbs all of them alike, and each repetition of one server
stands beside the same repetition of another. Before the first, each server gets short requests that
are not measured; at the end, some prompts again (`answers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from holdover.bench.answers import Again, ask_again
from holdover.bench.client import Sample
from holdover.bench.facts import server_facts
from holdover.bench.load import Target
from holdover.bench.session import Asker, connect
from holdover.bench.workload import FEW_TOKENS, Part, Workload
from holdover.bench.workloads import WORKLOADS
from holdover.config import at_least_one
from holdover.errors import ConfigError

WARM_UP_WORDS = 16
BUSY_CLIENT = 0.7  # of a core


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is measured, whichever it is."""

    seed: int = 0
    repeats: int | None = None  # the workload's own when not given
    warm_up: int = 1
    check: int = 3

    def __post_init__(self) -> None:
        if self.repeats is not None:
            at_least_one("repeats", self.repeats)
        for name in ("warm_up", "check"):
            if getattr(self, name) < 0:
                raise ConfigError("--" + name.replace("_", "-"), "the least is 0")

    def repeats_of(self, workload: Workload) -> int:
        return workload.repeats if self.repeats is None else self.repeats


@dataclass(frozen=True, slots=True)
class Repetition:
    """`client_cores`: how much of a core this client took meanwhile."""

    parts: Sequence[Part]
    client_cores: float


@dataclass(slots=True)
class Measured:
    """One server. `parts` of all repetitions come in the same order."""

    target: Target
    model: str
    facts: dict[str, str]
    repetitions: list[Repetition] = field(default_factory=list)
    again: Again = field(default_factory=Again)

    @property
    def samples(self) -> list[Sample]:
        """Each once: what a workload has in several parts is the same sample."""
        found = {
            id(sample): sample
            for repetition in self.repetitions
            for part in repetition.parts
            for sample in part.samples
        }
        return list(found.values())

    @property
    def problems(self) -> list[str]:
        """What makes its figures mean something else than they say."""
        found = []
        for part in (part for repetition in self.repetitions for part in repetition.parts):
            for sample in part.samples if part.fresh else ():
                cached, prompt = sample.cached_tokens or 0, sample.prompt_tokens or 0
                if cached > prompt / 2:
                    found.append(
                        f"it had {cached} of {prompt} prompt tokens from an earlier run; give "
                        "another --seed, or start it again"
                    )
                    break
        busiest = max((r.client_cores for r in self.repetitions), default=0.0)
        if busiest > BUSY_CLIENT:
            found.append(
                f"this client was busy for {busiest:.0%} of the time: the times are partly its own"
            )
        return list(dict.fromkeys(found))


def total_requests(workload: Workload, n_servers: int, settings: Settings) -> int:
    repeats = settings.repeats_of(workload)
    return n_servers * (settings.warm_up + repeats * workload.n_requests + settings.check)


async def measure(
    targets: Sequence[Target],
    name: str,
    workload: Workload,
    settings: Settings,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> list[Measured]:
    """`on_request` hears of (requests done, in all). Raises BenchError for what is no server."""
    count = counter(on_request, total_requests(workload, len(targets), settings))
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connect(target)) for target in targets]
        askers = [Asker(session, name, settings.seed, count) for session in sessions]
        found = [await begin(asker, settings) for asker in askers]
        for repetition in range(settings.repeats_of(workload)):
            for asker, measured in zip(askers, found, strict=True):
                measured.repetitions.append(await repeat(workload, asker, repetition))
        for asker, measured in zip(askers, found, strict=True):
            measured.again = await ask_again(asker, settings.check)
    return found


async def begin(asker: Asker, settings: Settings) -> Measured:
    """What a first request has to wait for is waited for here."""
    session = asker.session
    for number in range(settings.warm_up):
        await asker.ask(asker.messages(f"warm-up/{number}", WARM_UP_WORDS), FEW_TOKENS)
    asker.asked.clear()
    return Measured(session.target, session.model, await server_facts(session.wire))


async def repeat(workload: Workload, asker: Asker, repetition: int) -> Repetition:
    start_s, cpu_s = time.perf_counter(), time.thread_time()
    parts = await workload.once(asker, repetition)
    used_s = time.thread_time() - cpu_s
    return Repetition(parts, used_s / max(1e-9, time.perf_counter() - start_s))


def counter(on_request: Callable[[int, int], None], total: int) -> Callable[[], None]:
    n_done = 0
    on_request(0, total)

    def count() -> None:
        nonlocal n_done
        n_done += 1
        on_request(min(n_done, total), total)

    return count


def named_workload(name: str) -> Workload:
    if name not in WORKLOADS:
        raise ConfigError("--workloads", f"{name!r} is none of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
