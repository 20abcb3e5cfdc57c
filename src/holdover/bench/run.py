"""N streams at once against one OpenAI-compatible URL.

Each stream sends its next request when the last one ended (closed loop). The server is asked for
its model first, so a wrong URL or key is one clear error and not a thousand failed requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from holdover.bench.client import Sample, stream_chat
from holdover.bench.load import Load
from holdover.errors import HoldoverError


class BenchError(HoldoverError):
    """The server could not be measured at all."""


@dataclass(frozen=True, slots=True)
class Run:
    load: Load
    model: str
    wall_s: float
    samples: tuple[Sample, ...]


async def run_load(load: Load, on_sample: Callable[[Sample], None] = lambda sample: None) -> Run:
    """Send every request of `load`; `on_sample` hears of each as it ends. Raises BenchError."""
    headers = {"authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    limits = httpx.Limits(max_connections=load.streams, max_keepalive_connections=load.streams)
    async with httpx.AsyncClient(
        timeout=load.timeout_s, limits=limits, headers=headers, trust_env=False
    ) as client:
        model = load.model or await _first_model(client, load)
        waiting = iter(range(load.requests))
        samples: list[Sample] = []

        async def stream(indices: Iterator[int]) -> None:
            for index in indices:
                sample = await stream_chat(
                    client, f"{load.base_url}/chat/completions", load.body(index, model)
                )
                samples.append(sample)
                on_sample(sample)

        await asyncio.gather(*(stream(waiting) for _ in range(min(load.streams, load.requests))))
    wall_s = max(s.end_s for s in samples) - min(s.start_s for s in samples)
    return Run(load, model, wall_s, tuple(samples))


async def _first_model(client: httpx.AsyncClient, load: Load) -> str:
    url = f"{load.base_url}/models"
    try:
        response = await client.get(url)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.ConnectError as error:
        raise BenchError(f"--url: nothing answers at {load.url} ({error})") from error
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = "give --api-key" if status in (401, 403) else "give --model if it has no model list"
        raise BenchError(f"--url: GET {url} gave HTTP {status}; {hint}") from error
    except httpx.HTTPError as error:
        raise BenchError(f"--url: GET {url} failed: {error or type(error).__name__}") from error
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise BenchError(f"--url: GET {url} lists no model; give --model") from error
