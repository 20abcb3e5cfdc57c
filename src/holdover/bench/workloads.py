"""Named workloads: what is asked of a server. A field is a flag, its default the workload's.

The same for every server and every run with the same seed: prompts of so many words (near as many
tokens, to which a chat template adds its own), answers of exactly so many tokens, temperature 0.
Repetitions share no prompt unless the workload says so, so a prefix cache helps only where it is
meant to. `once` is one repetition; a workload of several `Part`s measures each by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdover.bench.conversations import Conversations
from holdover.bench.workload import (
    FEW_TOKENS,
    Part,
    Workload,
    check_numbers,
    either_streams_or_rate,
    numbers,
    rates,
)
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.bench.client import Sample
    from holdover.bench.load import Messages
    from holdover.bench.session import Asker


@dataclass(frozen=True, slots=True)
class Single:
    """One stream: how fast a server is for one person alone."""

    input_words: int = 32
    """Words of each prompt; the result has its tokens."""
    output_tokens: int = 128
    """Tokens of each answer."""
    requests: int = 2
    """Requests of a repetition, one after the other."""

    repeats = 3
    x_label = ""
    headline = ("per_token_p50_ms", "ttft_p50_ms")

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def about(self) -> str:
        return f"one stream, {self.input_words} words in, {self.output_tokens} tokens out"

    @property
    def n_requests(self) -> int:
        return self.requests

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        samples = [
            await asker.ask(
                asker.messages(f"{repetition}/{i}", self.input_words), self.output_tokens
            )
            for i in range(self.requests)
        ]
        return [Part("one stream", samples, fresh=True)]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Long prompts, each new at first (cold), then sent again (warm)."""

    input_words: str = "2048,6000"
    """Lengths of the prompts in words."""

    repeats = 3
    x_label = "prompt, words"
    headline = ("ttft_p50_ms", "prompt_tokens_per_s")

    def __post_init__(self) -> None:
        numbers(self.input_words, "input_words")

    @property
    def about(self) -> str:
        return f"prompts of {self.input_words} words, new and then again"

    @property
    def n_requests(self) -> int:
        return 2 * len(numbers(self.input_words, "input_words"))

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        parts = []
        for words in numbers(self.input_words, "input_words"):
            prompt = asker.messages(f"{words}/{repetition}", words)
            for line in ("cold", "warm"):
                samples = [await asker.ask(prompt, FEW_TOKENS)]
                parts.append(Part(f"{words} {line}", samples, words, line, fresh=line == "cold"))
        return parts


@dataclass(frozen=True, slots=True)
class LongContext:
    """One stream whose answer lies behind a long prompt: what a token costs as the cache grows."""

    input_words: str = "500,1000,2000,4000,6000"
    """Lengths of the prompts in words."""
    output_tokens: int = 64
    """Tokens of each answer."""

    repeats = 2
    x_label = "prompt, words"
    headline = ("per_token_p50_ms", "ttft_p50_ms")

    def __post_init__(self) -> None:
        check_numbers(self)
        numbers(self.input_words, "input_words")

    @property
    def about(self) -> str:
        return f"one stream behind {self.input_words} words, {self.output_tokens} tokens out"

    @property
    def n_requests(self) -> int:
        return len(numbers(self.input_words, "input_words"))

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        parts = []
        for words in numbers(self.input_words, "input_words"):
            prompt = asker.messages(f"{words}/{repetition}", words)
            samples = [await asker.ask(prompt, self.output_tokens)]
            parts.append(Part(f"{words} words", samples, words, fresh=True))
        return parts


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Many requests at once, or as they come: what a server does under load."""

    streams: str = "1,4,16"
    """Requests at once, each number a measurement of its own: a stream sends its next request when
    its last one ended."""
    requests: int | None = None
    """Requests of each measurement; as many as streams when not given, and 8 at least."""
    input_words: int = 512
    """Words of each prompt; the result has its tokens."""
    output_tokens: int = 128
    """Tokens of each answer."""
    rate: str | None = None
    """Requests a second instead of streams, as 0.5,1,2: they come as a Poisson process does,
    whether or not the server keeps up."""

    repeats = 2
    headline = ("output_tokens_per_s", "per_token_p50_ms", "ttft_p50_ms")

    def __post_init__(self) -> None:
        check_numbers(self)
        numbers(self.streams, "streams")
        rates(self.rate)
        either_streams_or_rate(self)

    @property
    def x_label(self) -> str:
        return "streams at once" if self.rate is None else "requests a second"

    @property
    def about(self) -> str:
        how = f"{self.streams} streams" if self.rate is None else f"{self.rate} requests a second"
        return f"{how}, {self.input_words} words in, {self.output_tokens} tokens out"

    @property
    def n_requests(self) -> int:
        return sum(count for _, count in self._measurements())

    def _measurements(self) -> list[tuple[float, int]]:
        """(streams or rate, requests) of each."""
        if self.rate is not None:
            return [(rate, self.requests or 32) for rate in rates(self.rate)]
        return [(n, self.requests or max(8, n)) for n in numbers(self.streams, "streams")]

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        from holdover.bench.arrivals import arrive

        parts = []
        for x, count in self._measurements():
            keys = [f"{repetition}/{x}/{i}" for i in range(count)]
            prompts = [asker.messages(key, self.input_words) for key in keys]
            samples: list[Sample] = []

            async def ask(prompt: Messages, into: list[Sample] = samples) -> Sample:
                into.append(await asker.ask(prompt, self.output_tokens))
                return into[-1]

            tasks = [partial(ask, prompt) for prompt in prompts]
            rate = None if self.rate is None else x
            await arrive(tasks, int(x), rate, asker.random(f"{repetition}/{x}"))
            noun = "a second" if self.rate is not None else "stream" if x == 1 else "streams"
            parts.append(Part(f"{x:g} {noun}", samples, x, fresh=True))
        return parts


@dataclass(frozen=True, slots=True)
class Rag:
    """Questions behind documents that many requests share, in an order that varies."""

    documents: int = 8
    """Documents in all."""
    document_words: int = 400
    """Words of each."""
    per_request: int = 3
    """Documents that stand before each question, in any order."""
    requests: int = 32
    """Questions."""
    streams: int = 4
    """Questions at once."""
    question_words: int = 16
    """Words of each question."""
    output_tokens: int = 64
    """Tokens of each answer."""
    rate: float | None = None
    """Questions a second instead of streams: they come as a Poisson process does."""

    repeats = 1
    x_label = ""
    headline = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "cached_share")

    def __post_init__(self) -> None:
        check_numbers(self)
        rates(None if self.rate is None else str(self.rate))
        either_streams_or_rate(self)
        if self.per_request > self.documents:
            raise ConfigError(
                "--per-request", f"{self.per_request} is more than --documents {self.documents}"
            )

    @property
    def about(self) -> str:
        return (
            f"{self.requests} questions, each behind {self.per_request} of {self.documents} "
            f"documents of {self.document_words} words, {self.output_tokens} tokens out"
        )

    @property
    def n_requests(self) -> int:
        return self.requests

    async def once(self, asker: Asker, repetition: int) -> list[Part]:
        from holdover.bench.arrivals import arrive

        documents = [
            f"Document {number + 1}: "
            + asker.prompt(f"{repetition}/document/{number}", self.document_words)
            for number in range(self.documents)
        ]
        choose = asker.random(f"{repetition}/order")
        samples: list[Sample] = []

        async def ask(content: str) -> Sample:
            samples.append(
                await asker.ask([{"role": "user", "content": content}], self.output_tokens)
            )
            return samples[-1]

        questions = [
            "\n\n".join(
                [
                    *choose.sample(documents, self.per_request),
                    "Question: " + asker.prompt(f"{repetition}/{i}", self.question_words),
                ]
            )
            for i in range(self.requests)
        ]
        tasks = [partial(ask, question) for question in questions]
        choose_when = asker.random(f"{repetition}/arrivals")
        await arrive(tasks, self.streams, self.rate, choose_when)
        return [Part("all questions", samples)]


WORKLOADS: dict[str, Workload] = {
    "single": Single(),
    "prefill": Prefill(),
    "long-context": LongContext(),
    "concurrent": Concurrent(),
    "chat": Conversations(
        users=12, turns=6, system_words=256, first_words=160, words=160, output_tokens=128
    ),
    "rag": Rag(),
    # Histories of 57,000 tokens in all: five times what 256 MiB hold of SmolLM2 at 16 bit.
    "pressure": Conversations(
        users=48, turns=4, system_words=0, first_words=660, words=60, output_tokens=72
    ),
}
