"""The next turn of conversations after their server was stopped and started again.

Three turns of the same kind are timed: `warm`, before the stop; `restarted`, the first after it;
and `cold`, turns of conversations as long that the server has never seen. A server that keeps
nothing has restarted = cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdover.bench.conversations import Restart
from holdover.bench.load import Messages, Target
from holdover.bench.measure import Measured, Repetition, Settings, begin, counter
from holdover.bench.server_process import START_LIMIT_S, Server, free_port, serving
from holdover.bench.session import Asked, Asker, connect, run_loop
from holdover.bench.workload import Part
from holdover.errors import ConfigError

IDLE_S = 2.0  # what a conversation has before its server is killed


@dataclass(frozen=True, slots=True)
class _Turns:
    """Sends one turn of each conversation, one after the other."""

    asker: Asker
    workload: Restart

    async def next(self, histories: list[Messages], key: str, words: int) -> list[Asked]:
        asked = []
        for number, history in enumerate(histories):
            text = self.asker.prompt(f"{key}/{number}", words)
            history.append({"role": "user", "content": text})
            sample = await self.asker.ask(list(history), self.workload.output_tokens)
            history.append({"role": "assistant", "content": sample.text})
            asked.append(self.asker.asked[-1])
        return asked


def measure_restarts(
    target: Target,
    workload: Restart,
    settings: Settings,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Raises ConfigError, BenchError and ServerError."""
    if "{port}" not in workload.command:
        raise ConfigError(
            "--command", "say how the server is started, with {port} where its port goes"
        )
    repeats = settings.repeats_of(workload)
    total = repeats * (2 * settings.warm_up + workload.n_requests)
    count = counter(on_request, total)
    found: Measured | None = None
    for repetition in range(repeats):
        measured = _once(target, workload, settings, repetition, count)
        if found is None:
            found = measured
        else:
            found.repetitions += measured.repetitions
    assert found is not None
    return found


def _once(
    target: Target, workload: Restart, settings: Settings, repetition: int,
    count: Callable[[], None],
) -> Measured:  # fmt: skip
    port = free_port()
    ready = f"http://127.0.0.1:{port}{workload.ready}"
    histories: list[Messages] = [[] for _ in range(workload.conversations)]
    grace_s = 0.0 if workload.kill else 60.0
    key = f"{repetition}"

    async def before(server: Server) -> list[Part]:
        async with connect(replace(target, url=server.url)) as session:
            turns = _Turns(Asker(session, "restart", settings.seed, count), workload)
            await begin(turns.asker, settings)
            await turns.next(histories, f"{key}/first", workload.first_words)
            warm = await turns.next(histories, f"{key}/second", workload.words)
            return [Part("warm", [each.sample for each in warm])]

    async def after(server: Server) -> tuple[Measured, list[Part]]:
        async with connect(replace(target, url=server.url)) as session:
            turns = _Turns(Asker(session, "restart", settings.seed, count), workload)
            measured = await begin(turns.asker, settings)
            restarted = await turns.next(histories, f"{key}/third", workload.words)
            cold = await turns.next(_others(turns.asker, histories, key), key, workload.words)
            parts = [
                Part("restarted", [each.sample for each in restarted]),
                Part("cold", [each.sample for each in cold], fresh=True),
            ]
            return measured, parts

    with serving(workload.command, ready, {}, START_LIMIT_S, grace_s, port) as server:
        parts = run_loop(before(server))
        if workload.kill:
            time.sleep(IDLE_S)
    with serving(workload.command, ready, {}, START_LIMIT_S, port=port) as server:
        measured, more = run_loop(after(server))
    measured.repetitions.append(Repetition([*parts, *more], 0.0))
    return measured


def _others(asker: Asker, histories: list[Messages], key: str) -> list[Messages]:
    """As long as these were before their last turn, and never sent."""
    return [
        [
            {**message, "content": asker.prompt(f"{key}/{i}/{n}", len(message["content"].split()))}
            for n, message in enumerate(history[:-2])
        ]
        for i, history in enumerate(histories)
    ]
