"""When requests begin: when others ended (closed loop), or when they are due (open loop)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from holdover.bench.client import Sample


async def arrive(
    tasks: Sequence[Callable[[], Awaitable[Sample]]],
    streams: int,
    rate_per_s: float | None,
    choose: random.Random,
) -> None:
    """In a closed loop of `streams`, or where there is a rate in an open one."""
    if rate_per_s is None:
        await closed_loop(tasks, streams)
    else:
        await open_loop(tasks, rate_per_s, choose)


async def closed_loop(tasks: Iterable[Callable[[], Awaitable[Sample]]], streams: int) -> None:
    """`streams` at once: each sends its next request when its last one ended.

    A stream that was refused waits as long as the server said before it asks for more.
    """
    waiting = iter(tasks)

    async def stream() -> None:
        for task in waiting:
            sample = await task()
            if sample.retry_after_s is not None:
                await asyncio.sleep(sample.retry_after_s)

    await asyncio.gather(*(stream() for _ in range(streams)))


async def open_loop(
    tasks: Sequence[Callable[[], Awaitable[Any]]], rate_per_s: float, choose: random.Random
) -> None:
    """Each begins when it is due, whether or not the server keeps up: a Poisson process.

    Gaps are exponential with mean 1 / `rate_per_s`, the same for the same seed.
    """
    begin_s, due_s = time.perf_counter(), 0.0
    running = []
    for task in tasks:
        await asyncio.sleep(max(0.0, begin_s + due_s - time.perf_counter()))
        running.append(asyncio.ensure_future(task()))
        due_s += choose.expovariate(rate_per_s)
    await asyncio.gather(*running)


async def together(tasks: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    await asyncio.gather(*(task() for task in tasks))


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
