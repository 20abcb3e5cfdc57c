"""Named workloads: what is asked of a server, and the figures that come of it.

The same for every server and every run with the same seed: prompts of so many words (near as many
tokens, to which a chat template adds its own), answers of exactly so many tokens, temperature 0.
Repetitions share no prompt unless the workload says so, so a prefix cache helps only where it is
meant to. One short request goes first and is not measured. Any request that fails ends the workload
with the server's message: figures of half a workload would mean something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdover.bench.client import Sample
from holdover.bench.load import Target
from holdover.bench.prompts import prompt_text
from holdover.bench.run import BenchError, Session, connect, wall_s
from holdover.bench.spread import percentile
from holdover.config import at_least_one
from holdover.errors import ConfigError

Messages = list[dict[str, str]]

SINGLE_WORDS, SINGLE_ANSWER_TOKENS = 32, 128
PREFILL_WORDS, FEW_TOKENS = (2048, 6000), 4
AGAIN_WORDS = 2048
DECODE_WORDS, DECODE_ANSWER_TOKENS = 6000, 64
STREAMS, STREAM_WORDS, STREAM_ANSWER_TOKENS = 16, 512, 128


@dataclass(frozen=True, slots=True)
class Figure:
    """`name` ends in its unit: `_ms` (less is better) or `_tokens_per_s` (more is better)."""

    name: str
    label: str
    values: tuple[float, ...]  # one for each repetition

    @property
    def less_is_better(self) -> bool:
        return self.name.endswith("_ms")


@dataclass(slots=True)
class Asker:
    """Sends the requests of one workload, and keeps what came back."""

    session: Session
    workload: str
    seed: int
    on_request: Callable[[], None]
    samples: list[Sample] = field(default_factory=list)

    def prompt(self, index: object, words: int) -> Messages:
        text = prompt_text(self.seed, f"{self.workload}/{index}", words)
        return [{"role": "user", "content": text}]

    async def ask(self, messages: Messages, answer_tokens: int, fresh: bool = False) -> Sample:
        """`fresh`: the server must not have the prompt in its cache already. Raises BenchError."""
        target = self.session.target
        body = target.body(messages, answer_tokens, self.session.model, self.seed)
        sample = await self.session.send(body)
        self._check(sample, answer_tokens, fresh)
        self.samples.append(sample)
        self.on_request()
        return sample

    def _check(self, sample: Sample, answer_tokens: int, fresh: bool) -> None:
        problem = None
        cached_tokens, prompt_tokens = sample.cached_tokens or 0, sample.prompt_tokens or 0
        if sample.error is not None:
            problem = f"{sample.error}: {sample.error_detail}"
        elif sample.counted or sample.prompt_tokens is None:
            problem = "the server gives no usage with a stream, so no token counts"
        elif sample.output_tokens != answer_tokens:
            problem = (
                f"an answer has {sample.output_tokens} tokens instead of {answer_tokens}; if the "
                "server has another field than ignore_eos for that, give it with --extra-body"
            )
        elif sample.ttft_s is None:
            problem = f"an answer of {answer_tokens} tokens has no text"
        elif fresh and cached_tokens > prompt_tokens / 2:
            problem = (
                f"the server has {cached_tokens} of {prompt_tokens} prompt tokens from an earlier "
                "run; give another --seed, or start the server again"
            )
        if problem is not None:
            raise BenchError(f"workload {self.workload}: {problem}")


@dataclass(frozen=True, slots=True)
class Workload:
    about: str
    repeats: int
    requests: tuple[int, int]  # once, and for each repetition
    streams: int
    run: Callable[[Asker, int], Awaitable[tuple[Figure, ...]]]


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    workload: str
    target: Target
    model: str
    seed: int
    repeats: int
    figures: tuple[Figure, ...]
    samples: tuple[Sample, ...]


async def run_workload(
    target: Target,
    name: str,
    seed: int = 0,
    repeats: int | None = None,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> WorkloadRun:
    """`on_request` hears of (requests done, in all). Raises BenchError and ConfigError."""
    if name not in WORKLOADS:
        raise ConfigError("--workload", f"{name!r} is none of {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    repeats = workload.repeats if repeats is None else repeats
    at_least_one("repeats", repeats)
    n_done, n_requests = 0, 1 + workload.requests[0] + repeats * workload.requests[1]

    def count() -> None:
        nonlocal n_done
        n_done += 1
        on_request(n_done, n_requests)

    async with connect(target, workload.streams) as session:
        on_request(0, n_requests)
        asker = Asker(session, name, seed, count)
        await asker.ask(asker.prompt("warm-up", 16), FEW_TOKENS)
        asker.samples.clear()
        figures = await workload.run(asker, repeats)
    return WorkloadRun(name, target, session.model, seed, repeats, figures, tuple(asker.samples))


async def _single(asker: Asker, repeats: int) -> tuple[Figure, ...]:
    values_ms = [
        per_token_ms(await asker.ask(asker.prompt(i, SINGLE_WORDS), SINGLE_ANSWER_TOKENS))
        for i in range(repeats)
    ]
    return (Figure("per_token_ms", "per token", tuple(values_ms)),)


async def _prefill(asker: Asker, repeats: int) -> tuple[Figure, ...]:
    figures: list[Figure] = []
    for words in PREFILL_WORDS:
        rates, ttfts_ms = [], []
        for i in range(repeats):
            prompt = asker.prompt(f"{words}/{i}", words)
            sample = await asker.ask(prompt, FEW_TOKENS, fresh=True)
            ttfts_ms.append(ttft_ms(sample))
            rates.append(1000 * (sample.prompt_tokens or 0) / ttfts_ms[-1])
        figures += [
            Figure(f"prefill_{words}_tokens_per_s", f"{words} words, prompt", tuple(rates)),
            Figure(f"ttft_{words}_ms", f"{words} words, first token", tuple(ttfts_ms)),
        ]
    return tuple(figures)


async def _again(asker: Asker, repeats: int) -> tuple[Figure, ...]:
    prompt = asker.prompt(0, AGAIN_WORDS)
    await asker.ask(prompt, FEW_TOKENS)
    values_ms = [ttft_ms(await asker.ask(prompt, FEW_TOKENS)) for _ in range(repeats)]
    return (Figure("ttft_again_ms", "first token", tuple(values_ms)),)


async def _decode(asker: Asker, repeats: int) -> tuple[Figure, ...]:
    prompt = asker.prompt(0, DECODE_WORDS)
    await asker.ask(prompt, FEW_TOKENS)
    values_ms = [
        per_token_ms(await asker.ask(prompt, DECODE_ANSWER_TOKENS)) for _ in range(repeats)
    ]
    return (Figure("per_token_ms", "per token", tuple(values_ms)),)


async def _streams(asker: Asker, repeats: int) -> tuple[Figure, ...]:
    rates, per_tokens_ms = [], []
    for i in range(repeats):
        prompts = [asker.prompt(f"{i}/{stream}", STREAM_WORDS) for stream in range(STREAMS)]
        samples = await asyncio.gather(
            *(asker.ask(prompt, STREAM_ANSWER_TOKENS, fresh=True) for prompt in prompts)
        )
        rates.append(output_tokens_per_s(samples))
        per_tokens_ms.append(percentile([per_token_ms(s) for s in samples], 50) or 0.0)
    return (
        Figure("output_tokens_per_s", "output", tuple(rates)),
        Figure("per_token_ms", "per token, p50", tuple(per_tokens_ms)),
    )


@dataclass(frozen=True, slots=True)
class Conversations:
    """`users` at once, each with `turns` that resend the whole history."""

    users: int
    turns: int
    first_words: int
    words: int  # of each later message
    answer_tokens: int

    async def run(self, asker: Asker, repeats: int) -> tuple[Figure, ...]:
        rates, middles_ms, late_ms = [], [], []
        for i in range(repeats):
            users = (self._user(asker, f"{i}/{number}") for number in range(self.users))
            samples = [sample for turns in await asyncio.gather(*users) for sample in turns]
            ttfts_ms = [ttft_ms(sample) for sample in samples]
            rates.append(output_tokens_per_s(samples))
            middles_ms.append(percentile(ttfts_ms, 50) or 0.0)
            late_ms.append(percentile(ttfts_ms, 95) or 0.0)
        return (
            Figure("output_tokens_per_s", "output", tuple(rates)),
            Figure("ttft_p50_ms", "first token, p50", tuple(middles_ms)),
            Figure("ttft_p95_ms", "first token, p95", tuple(late_ms)),
        )

    async def _user(self, asker: Asker, key: str) -> list[Sample]:
        messages: Messages = []
        samples = []
        for turn in range(self.turns):
            messages += asker.prompt(f"{key}/{turn}", self.words if turn else self.first_words)
            samples.append(await asker.ask(messages, self.answer_tokens, fresh=turn == 0))
            messages = [*messages, {"role": "assistant", "content": samples[-1].text}]
        return samples


def per_token_ms(sample: Sample) -> float:
    """Between the first and the last piece of text, for each token after the first."""
    return 1000 * sum(sample.gaps_s) / max(1, sample.output_tokens - 1)


def ttft_ms(sample: Sample) -> float:
    return 1000 * (sample.ttft_s or 0.0)


def output_tokens_per_s(samples: list[Sample]) -> float:
    return sum(sample.output_tokens for sample in samples) / wall_s(samples)


CHAT = Conversations(users=12, turns=6, first_words=160, words=160, answer_tokens=128)
# Histories of 57,000 tokens in all: five times what 256 MiB hold of SmolLM2 at 16 bit.
PRESSURE = Conversations(users=48, turns=4, first_words=660, words=60, answer_tokens=72)

WORKLOADS = {
    "single": Workload(
        f"one stream, {SINGLE_WORDS} words in, {SINGLE_ANSWER_TOKENS} tokens out", 5, (0, 1), 1,
        _single,
    ),
    "prefill": Workload(
        "long prompts: " + " and ".join(f"{words:,} words" for words in PREFILL_WORDS),
        3, (0, len(PREFILL_WORDS)), 1, _prefill,
    ),
    "again": Workload(f"the same {AGAIN_WORDS:,} words again", 5, (1, 1), 1, _again),
    "decode": Workload(
        f"one stream behind {DECODE_WORDS:,} words, {DECODE_ANSWER_TOKENS} tokens out, the prompt "
        "cached", 3, (1, 1), 1, _decode,
    ),
    "streams": Workload(
        f"{STREAMS} streams at once, {STREAM_WORDS} words in, {STREAM_ANSWER_TOKENS} tokens out",
        2, (0, STREAMS), STREAMS, _streams,
    ),
    "chat": Workload(
        f"{CHAT.users} users, {CHAT.turns} turns of {CHAT.words} words in and {CHAT.answer_tokens} "
        "tokens out, the whole history resent", 1, (0, CHAT.users * CHAT.turns), CHAT.users,
        CHAT.run,
    ),
    "pressure": Workload(
        f"{PRESSURE.users} users, {PRESSURE.turns} turns, {PRESSURE.first_words} words at first: "
        "histories larger than the cache is meant to be", 1, (0, PRESSURE.users * PRESSURE.turns),
        PRESSURE.users, PRESSURE.run,
    ),
}  # fmt: skip
