"""The technique ladder: this engine on one workload, with one technique more on each step.

Each step is a server process of its own, with the flags of one `Config`: the reader can start the
same. The workload is a chat (`conversations`); while it runs the server's /metrics are read each
SAMPLE_S for what is held, and of that what holds a token.
"""

from __future__ import annotations

import asyncio
import shlex
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdover.bench.conversations import Conversations
from holdover.bench.load import Target
from holdover.bench.measure import Measured, Settings, begin, counter, repeat
from holdover.bench.server_process import START_LIMIT_S, serving
from holdover.bench.session import Asker, Session, connect, run_loop
from holdover.bench.techniques import Ladder
from holdover.config import Config, flag
from holdover.engine.planning import Planned, plan_serving

SAMPLE_S = 0.1


@dataclass(slots=True)
class Held:
    """What /metrics said while the chat ran."""

    running: list[int] = field(default_factory=list)
    wasted: list[float] = field(default_factory=list)  # share of held bytes without a token
    counters: dict[str, float] = field(default_factory=dict)

    def take(self, text: str) -> None:
        found = dict(_values(text))
        self.running.append(int(found.get('holdover_sequences{state="running"}', 0)))
        held = found.get("holdover_kv_held_bytes", 0.0)
        if held:  # shared prefixes make the sum of the formula the larger one
            self.wasted.append(max(0.0, 1 - found.get("holdover_kv_logical_bytes", 0.0) / held))
        self.counters = found

    @property
    def most_running(self) -> int:
        return max(self.running, default=0)

    @property
    def waste(self) -> float:
        return statistics.mean(self.wasted) if self.wasted else 0.0


@dataclass(frozen=True, slots=True)
class Rung:
    """One step, measured; `settings` are those of `holdover serve`."""

    name: str
    settings: Mapping[str, Any]
    command: str
    fit: int
    kl_mean: float | None  # as measured for this model and codec
    measured: Measured
    held: Held


def measure_ladder(
    ladder: Ladder,
    settings: Settings,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> list[Rung]:
    """Raises ServerError, BenchError and ConfigError; one server at a time."""
    chat = ladder.chat
    repeats = settings.repeats_of(chat)
    with tempfile.TemporaryDirectory(prefix="holdover-ladder-") as folder:
        steps = ladder.steps(folder)
        total = len(steps) * (settings.warm_up + repeats * chat.n_requests)
        climb = _Climb(chat, settings, repeats, counter(on_request, total))
        # What one cannot serve is said before the first is started.
        planned = [plan_serving(Config(**asked)) for _, asked in steps]
        rungs = [climb.rung(*step, plan) for step, plan in zip(steps, planned, strict=True)]
    return [replace(rung, command=rung.command.replace(folder, "/path")) for rung in rungs]


@dataclass(frozen=True, slots=True)
class _Climb:
    """What all steps have in common."""

    chat: Conversations
    settings: Settings
    repeats: int
    count: Callable[[], None]

    def rung(self, name: str, asked: Mapping[str, Any], planned: Planned) -> Rung:
        command = serve_command(asked, [sys.executable, "-m", "holdover"]) + " --port {port}"
        with serving(command, "http://127.0.0.1:{port}/health", {}, START_LIMIT_S) as server:
            measured, held = run_loop(self._drive(Target(server.url, name=name)))
        quality = planned.plan.subject.quality
        longest = max((sample.prompt_tokens or 0 for sample in measured.samples), default=0)
        return Rung(
            name,
            asked,
            serve_command(asked, ["holdover"]),
            conversations_that_fit(planned, longest + self.chat.output_tokens),
            None if quality is None or "window" in asked else quality.kl_mean,
            measured,
            held,
        )

    async def _drive(self, target: Target) -> tuple[Measured, Held]:
        held = Held()
        async with connect(target) as session:
            asker = Asker(session, "ladder", self.settings.seed, self.count)
            measured = await begin(asker, self.settings)
            async with _watching(session, held):
                for repetition in range(self.repeats):
                    measured.repetitions.append(await repeat(self.chat, asker, repetition))
        return measured, held


def serve_command(settings: Mapping[str, Any], program: Sequence[str]) -> str:
    """What starts the server of a step."""
    words = [*program, "serve", str(settings["model"])]
    for name, value in settings.items():
        for one in value if isinstance(value, tuple) else (value,):
            if name != "model":
                words += [flag(name), str(one)]
    return shlex.join(words)


def conversations_that_fit(planned: Planned, n_tokens: int) -> int:
    """At once, each of so many tokens, none of which it shares."""
    layout, n_sectors = planned.layout, planned.plan.n_sectors
    if planned.config.reservation == "contiguous":
        return layout.whole_conversations(n_sectors, planned.limits.max_context_tokens)
    return layout.max_conversations(n_sectors, n_tokens)


@asynccontextmanager
async def _watching(session: Session, held: Held) -> AsyncIterator[None]:
    """Look at /metrics now and then, to the end."""

    async def look() -> None:
        while True:
            held.take((await session.wire.get("/metrics")).body.decode())
            await asyncio.sleep(SAMPLE_S)

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        held.take((await session.wire.get("/metrics")).body.decode())


def _values(text: str) -> Iterator[tuple[str, float]]:
    """Of Prometheus' text format."""
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            yield name, float(value)
