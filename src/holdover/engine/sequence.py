"""One answer in the making, as the scheduler sees it: its tokens and how many are computed.

There is no prefill or decode state. A sequence has tokens, the cache holds the first `n_computed`
of them, and whoever has `n_pending` down to zero gets the next one. What lets a parked sequence go
on as if nothing had happened (tokens, seed, penalty counts) lives here; text does not.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import Enum

from holdover.cache.explain import Reuse
from holdover.cache.lifting import Lift
from holdover.cache.sequence import SequenceCache
from holdover.engine.api import SamplingParams, Usage
from holdover.engine.counts import TokenCounts
from holdover.engine.sampler import SampleRow, has_penalty
from holdover.spec.residency import Residency, forgotten_tokens


class State(Enum):
    HELD_BACK = "held back"  # a sibling that waits for the first one's prompt
    WAITING = "waiting"
    LOADING = "loading"  # its prefix is on the way from a tier
    RUNNING = "running"
    PARKED = "parked"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """`arrival` orders sequences, oldest first; `max_tokens` bounds the answer."""

    arrival: int
    tokens: list[int]  # prompt, then answer
    n_prompt: int
    max_tokens: int
    params: SamplingParams
    tenant: str
    seed: int
    counts: TokenCounts | None
    state: State = State.WAITING
    cache: SequenceCache | None = None
    lift: Lift | None = None
    name: str = ""  # the request's
    cached_tokens: int | None = None  # of the prompt, reused when first admitted
    reuse: Reuse | None = None  # the same, explained
    residencies: tuple[Residency, ...] = ()  # of the cache's groups

    @classmethod
    def of(
        cls,
        arrival: int,
        prompt: tuple[int, ...],
        params: SamplingParams,
        max_tokens: int,
        *,
        tenant: str = "",
        name: str = "",
        sibling: int = 0,
        residencies: tuple[Residency, ...] = (),
    ) -> Sequence:
        """Answer number `sibling` of a request; with a seed, sibling i draws from seed + i."""
        seed = secrets.randbits(64) if params.seed is None else params.seed + sibling
        return cls(
            arrival=arrival,
            tokens=list(prompt),
            n_prompt=len(prompt),
            max_tokens=max_tokens,
            params=params,
            tenant=tenant,
            name=name,
            residencies=residencies,
            seed=seed,
            counts=TokenCounts(prompt) if has_penalty(params) else None,
        )

    @property
    def n_computed(self) -> int:
        return 0 if self.cache is None else self.cache.n_tokens

    @property
    def n_pending(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.n_computed

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_longest(self) -> int:
        """Most tokens the cache will ever hold of it; the last one of an answer is never run."""
        return self.n_prompt + self.max_tokens - 1

    def sample_row(self) -> SampleRow:
        """What the sampler needs for the next token."""
        return SampleRow(self.params, self.seed, len(self.tokens), self.counts)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self.counts is not None:
            self.counts.add(token)

    def usage(self) -> Usage:
        forgotten = forgotten_tokens(self.residencies, len(self.tokens))
        return Usage(
            self.n_prompt, self.n_generated, self.cached_tokens or 0, self.reuse, forgotten
        )
