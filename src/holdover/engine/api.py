"""What callers of the engine see: the parameters of a request and the events of its answer.

Torch-free and immutable. The server and the terminal chat are built on these and on
`engine.Engine`; they never touch a sequence, a block or a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from holdover.cache.explain import Reuse
from holdover.cache.keeping import Kept
from holdover.cache.tiers.base import TierStats
from holdover.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "error"]

SHUTTING_DOWN = "shutting_down"
"""Code of the RequestError with which an engine that has stopped refuses requests."""
QUEUE_FULL = "queue_full"
"""Code of the RequestError with which a request is refused because too many wait."""
NOT_FINITE = "the model computed values that are not finite (NaN or infinity)"
"""`Event.error` of an answer that ended for this; the server may show it."""
MAX_LOGPROBS = 20
"""Most likeliest tokens that a request may ask to see at each place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when the answer ends.

    Order: logit bias, repetition (prompt and answer), presence and frequency (answer only)
    penalties, temperature, min_p, top_k, top_p. Temperature 0 is greedy.
    """

    max_tokens: int | None = None  # None: as many as the context allows
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the chosen token and the n likeliest

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 1, None)
        _check("temperature", self.temperature, 0, 100)
        _check("top_p", self.top_p, 0, 1)
        _check("top_k", self.top_k, 0, None)
        _check("min_p", self.min_p, 0, 1)
        _check("repetition_penalty", self.repetition_penalty, 1e-3, 100)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.top_p == 0:
            raise RequestError("top_p", "top_p must be above 0; use temperature 0 for greedy")
        if any(not text for text in self.stop):
            raise RequestError("stop", "a stop string must not be empty")
        for token, bias in self.logit_bias:
            _check("logit_bias", bias, -100, 100)
            _check("logit_bias", token, 0, None)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a token under the model's distribution before sampling."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; `cached_tokens` of the prompt were reused, not computed.

    `forgotten_tokens` of prompt and answer are read by no layer any more; None where some layer
    reads all.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reuse: Reuse | None = None  # why it was so many; None: never admitted
    forgotten_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """News of one answer: its text so far grew by `text`; the last one has a finish reason.

    `text` may be empty while a character or a possible stop string is incomplete; `token_ids` are
    the tokens generated since the last event, end and stop tokens included.
    """

    index: int  # which of the request's n answers
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # on the last event
    error: str | None = None  # with finish reason "error"


EventSink = Callable[[Event], None]
"""Called on the engine's thread for every event; must return at once and not raise."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A consistent snapshot for metrics and for the terminal chat."""

    running: int
    waiting: int
    parked: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    parked_total: int
    evicted_blocks: int
    planned_bytes: int
    allocated_bytes: int
    held_bytes: int  # blocks that running sequences use
    logical_bytes: int  # of the same sequences by the formula: nothing shared, nothing rounded
    cached_bytes: int  # blocks kept only for reuse
    refused_total: int  # requests, because too many waited
    tiers: Mapping[str, TierStats] = field(default_factory=dict)
    declined_loads: int = 0  # from tiers, predicted to take longer than computing
    lost_blocks: int = 0  # evicted before any tier could take them
    requantised_tokens: int = 0  # of the cached ones: not equal to computed ones, but close
    kept_prompt_ends: int = 0  # first tokens without a prefill
    # Of queries of generated tokens, where layers are sparse; blocks of one KV head of a layer.
    decode_read_blocks: int = 0
    decode_context_blocks: int = 0
    decode_read_bytes: int = 0
    decode_context_bytes: int = 0


class EngineLike(Protocol):
    """The engine as the server sees it. All methods may be called from any thread."""

    @property
    def fingerprint(self) -> str:
        """Changes with all that decides a seeded answer: weights, KV layout, dtype, kernels."""

    def submit(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        on_event: EventSink,
        *,
        n: int = 1,
        tenant: str = "",
    ) -> str:
        """Queue a request for `n` answers; returns its id.

        Raises RequestError at once for a prompt that is empty, has unknown token ids, or can never
        fit together with max_tokens; the message has the number of tokens that would. With the
        code QUEUE_FULL when too many requests wait.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request; its blocks are free within one step. Unknown ids are ignored."""

    def kept(self, tokens: tuple[int, ...], tenant: str = "") -> Future[Kept]:
        """Where a conversation lies, and how much of it can be reused."""

    def pin(self, tokens: tuple[int, ...], tenant: str, until_s: float) -> Future[None]:
        """Evict others' blocks before a conversation's until then (time.monotonic()); 0 ends it."""

    def forget(
        self, tokens: tuple[int, ...], tenant: str = "", keep_tokens: int = 0
    ) -> Future[int]:
        """Remove what no other conversation goes on from, but for the whole blocks of its first
        `keep_tokens`; gives the number of blocks."""

    def stats(self) -> EngineStats: ...

    def shutdown(self, grace_s: float) -> None:
        """Accept nothing more, let running requests finish for `grace_s`, cancel the rest, stop."""


def _check(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < low or (high is not None and value > high):
        limit = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
        raise RequestError(name, f"{name} must be {limit}, not {value}")
