"""A server that has answered, and the requests of one workload to it.

The server is asked for its model first, so a wrong URL or key is one clear error and not a thousand
failed requests. A request that fails is a sample with its error, and the work goes on.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdover.bench.client import Sample, stream_chat
from holdover.bench.load import Messages, Target
from holdover.bench.prompts import prompt_text
from holdover.bench.wire import Wire, WireError
from holdover.errors import HoldoverError

Result = TypeVar("Result")


class BenchError(HoldoverError):
    """The server could not be measured at all."""


@dataclass(frozen=True, slots=True)
class Session:
    """A server that has answered, and the model to ask it for."""

    target: Target
    model: str
    wire: Wire
    path: str  # what stands before /chat/completions

    async def send(self, messages: Messages, output_tokens: int, seed: int) -> Sample:
        body = self.target.body(messages, output_tokens, self.model, seed)
        path = f"{self.path}/chat/completions"
        return await stream_chat(self.wire, path, body, self.target.retries)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and what came of it."""

    messages: Messages
    sample: Sample


@dataclass(slots=True)
class Asker:
    """Sends the requests of one workload, and keeps what came back."""

    session: Session
    workload: str
    seed: int
    on_request: Callable[[], None] = lambda: None
    asked: list[Asked] = field(default_factory=list)

    def prompt(self, index: object, words: int) -> str:
        """The same for every server; two indices share no long prefix."""
        return prompt_text(self.seed, f"{self.workload}/{index}", words)

    def messages(self, index: object, words: int) -> Messages:
        return [{"role": "user", "content": self.prompt(index, words)}]

    def random(self, index: object) -> random.Random:
        return random.Random(f"{self.seed}:{self.workload}/{index}")

    async def ask(self, messages: Messages, output_tokens: int) -> Sample:
        sample = await self.session.send(messages, output_tokens, self.seed)
        self.asked.append(Asked(messages, sample))
        self.on_request()
        return sample


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Session]:
    """Raises BenchError."""
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    wire = Wire(target.root_url, target.timeout_s, headers)
    path = urlsplit(target.base_url).path
    try:
        yield Session(target, target.model or await _first_model(wire, path, target), wire, path)
    finally:
        wire.close()


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it where times can be trusted: on uvloop where there is one, without garbage collection,
    which would stop all streams for the time of a walk over everything that torch has loaded."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(work)
    finally:
        if collecting:
            gc.enable()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:  # Windows
        return None
    return uvloop.new_event_loop


async def _first_model(wire: Wire, path: str, target: Target) -> str:
    url = f"{target.base_url}/models"
    try:
        answer = await wire.get(f"{path}/models")
    except WireError as error:
        if error.kind == "no connection":
            raise BenchError(f"--url: nothing answers at {target.url} ({error})") from error
        raise BenchError(f"--url: GET {url} failed: {error.kind}, {error}") from error
    if answer.status != 200:
        hint = "give --model if it has no model list"
        hint = "give --api-key" if answer.status in (401, 403) else hint
        raise BenchError(f"--url: GET {url} gave HTTP {answer.status}; {hint}")
    try:
        return str(json.loads(answer.body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BenchError(f"--url: GET {url} lists no model; give --model") from error
