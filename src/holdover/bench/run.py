"""N streams at once against one OpenAI-compatible URL.

Each stream sends its next request when the last one ended (closed loop). The server is asked for
its model first, so a wrong URL or key is one clear error and not a thousand failed requests.
A `Session` is that connection; workloads use it as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from holdover.bench.client import Sample, stream_chat
from holdover.bench.load import Load, Target
from holdover.errors import HoldoverError


class BenchError(HoldoverError):
    """The server could not be measured at all."""


@dataclass(frozen=True, slots=True)
class Run:
    load: Load
    model: str
    wall_s: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A server that has answered, and the model to ask it for."""

    target: Target
    model: str
    client: httpx.AsyncClient

    async def send(self, body: dict[str, Any]) -> Sample:
        return await stream_chat(self.client, f"{self.target.base_url}/chat/completions", body)


@asynccontextmanager
async def connect(target: Target, streams: int) -> AsyncIterator[Session]:
    """Up to `streams` connections that are kept open. Raises BenchError."""
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    async with httpx.AsyncClient(
        timeout=target.timeout_s, limits=limits, headers=headers, trust_env=False
    ) as client:
        yield Session(target, target.model or await _first_model(client, target), client)


async def run_load(load: Load, on_sample: Callable[[Sample], None] = lambda sample: None) -> Run:
    """Send every request of `load`; `on_sample` hears of each as it ends. Raises BenchError."""
    async with connect(load.target, load.streams) as session:
        waiting = iter(range(load.requests))
        samples: list[Sample] = []

        async def stream(indices: Iterator[int]) -> None:
            for index in indices:
                sample = await session.send(load.body(index, session.model))
                samples.append(sample)
                on_sample(sample)

        await asyncio.gather(*(stream(waiting) for _ in range(min(load.streams, load.requests))))
    return Run(load, session.model, wall_s(samples), tuple(samples))


def wall_s(samples: Sequence[Sample]) -> float:
    """From the first request's start to the last one's end."""
    return max(s.end_s for s in samples) - min(s.start_s for s in samples)


async def _first_model(client: httpx.AsyncClient, target: Target) -> str:
    url = f"{target.base_url}/models"
    try:
        response = await client.get(url)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.ConnectError as error:
        raise BenchError(f"--url: nothing answers at {target.url} ({error})") from error
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = "give --api-key" if status in (401, 403) else "give --model if it has no model list"
        raise BenchError(f"--url: GET {url} gave HTTP {status}; {hint}") from error
    except httpx.HTTPError as error:
        raise BenchError(f"--url: GET {url} failed: {error or type(error).__name__}") from error
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise BenchError(f"--url: GET {url} lists no model; give --model") from error
