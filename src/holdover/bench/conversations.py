"""Workloads of several turns: users who chat, and conversations that outlive their server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from holdover.bench.workload import Part, check_numbers, rates
from holdover.config import flag
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.bench.client import Sample
    from holdover.bench.load import Messages
    from holdover.bench.session import Asker

RESTART_TURNS = 3


@dataclass(frozen=True, slots=True)
class Conversations:
    """Users with several turns each, a system prompt in common, the whole history sent again."""

    users: int
    """Users at once."""
    turns: int
    """Turns of each user."""
    system_words: int
    """Words of the system prompt that all users share; 0 for none."""
    first_words: int
    """Words of each user's first message."""
    words: int
    """Words of each later message."""
    output_tokens: int
    """Tokens of each answer."""
    think_s: float = 0.0
    """Mean time a user takes before the next message, exponentially distributed."""
    rate: float | None = None
    """Users a second, who come as a Poisson process; without it all are there at once."""

    repeats = 1
    x_label = "turn"
    headline = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p95_ms")

    def __post_init__(self) -> None:
        check_numbers(self, ("users", "turns", "first_words", "words", "output_tokens"))
        if self.system_words < 0 or not self.think_s >= 0:
            name = "system_words" if self.system_words < 0 else "think_s"
            raise ConfigError(flag(name), f"{getattr(self, name)} is too small; the least is 0")
        rates(None if self.rate is None else str(self.rate))

    @property
    def about(self) -> str:
        shared = f"a system prompt of {self.system_words} words, " if self.system_words else ""
        return (
            f"{self.users} users, {self.turns} turns, {shared}{self.first_words} and then "
            f"{self.words} words in, {self.output_tokens} tokens out, the whole history resent"
        )

    @property
    def n_requests(self) -> int:
        return self.users * self.turns

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        from holdover.bench.arrivals import open_loop, pause, together

        turns: list[list[Sample]] = [[] for _ in range(self.turns)]
        said = [self._words(asker, f"{repetition}/{user}") for user in range(self.users)]
        system = asker.prompt(f"{repetition}/system", self.system_words)

        async def user(number: int) -> None:
            history: Messages = [{"role": "system", "content": system}] if system else []
            think = asker.random(f"{repetition}/{number}/think")
            for turn, words in enumerate(said[number]):
                if turn and self.think_s:
                    await pause(think.expovariate(1 / self.think_s))
                history = [*history, {"role": "user", "content": words}]
                sample = await asker.ask(history, self.output_tokens)
                turns[turn].append(sample)
                if sample.error is not None:
                    return  # what was not answered cannot be gone on from
                history = [*history, {"role": "assistant", "content": sample.text}]

        tasks = [partial(user, number) for number in range(self.users)]
        if self.rate is None:
            await together(tasks)
        else:
            await open_loop(tasks, self.rate, asker.random(f"{repetition}/arrivals"))
        whole = Part("all turns", list(chain(*turns)))
        each = [
            Part(f"turn {n}", samples, n, fresh=n == 1 and not system)
            for n, samples in enumerate(turns, 1)
        ]
        return [whole, *each]

    def _words(self, asker: Asker, key: str) -> list[str]:
        return [
            asker.prompt(f"{key}/{turn}", self.words if turn else self.first_words)
            for turn in range(self.turns)
        ]


@dataclass(frozen=True, slots=True)
class Restart:
    """A server that is started, stopped and started again, so its command is needed."""

    command: str = ""
    """How the server is started, {port} for its port, as 'holdover serve --port {port}'."""
    ready: str = "/health"
    """Path that answers 200 when the server serves."""
    conversations: int = 8
    """Conversations that are gone on with."""
    first_words: int = 1450
    """Words of each first message."""
    words: int = 32
    """Words of each later message."""
    output_tokens: int = 32
    """Tokens of each answer."""
    kill: bool = False
    """Kill the server, which gets no time to end."""

    repeats = 2
    x_label = ""
    headline = ("ttft_p50_ms",)

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def about(self) -> str:
        return (
            f"{self.conversations} conversations of {self.first_words} words go on after their "
            f"server was {'killed' if self.kill else 'stopped'} and started again"
        )

    @property
    def n_requests(self) -> int:
        return (RESTART_TURNS + 1) * self.conversations

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        raise ConfigError("restart", "is measured by measure_restarts: one server is not enough")
