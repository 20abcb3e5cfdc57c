"""A request of a trace on its way through the replay, and when the next one is sent."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from holdover.cache.explain import Reuse
from holdover.cache.lifting import Lift
from holdover.cache.sequence import SequenceCache
from holdover.engine.sequence import State
from holdover.simulate.trace import Request, Trace


def prompt_tokens(request: Request, block_tokens: int, filler: int) -> Sequence[int]:
    """Each token of a block is its id; what has no id is `filler`, which nobody else has."""
    known = np.repeat(request.block_ids, block_tokens)[: request.prompt_tokens]
    rest = np.full(request.prompt_tokens - len(known), filler, np.int32)
    return _as_tokens(np.concatenate((known, rest)) if len(rest) else known)


def filled(n_tokens: int, filler: int) -> Sequence[int]:
    return _as_tokens(np.full(n_tokens, filler, np.int32))


def _as_tokens(array: NDArray[np.int32]) -> Sequence[int]:
    """An array is indexed and cut as the manager's tokens are, and its bytes need no conversion."""
    return cast(Sequence[int], array)


@dataclass(slots=True, eq=False)
class Served:
    """What a `Sequence` is to the engine, with times and without what is sampled.

    While it decodes, `end_step` is the step that makes its last token; else it is 0.
    """

    index: int  # in the trace
    arrival: int
    tokens: Sequence[int]  # prompt; of one that was parked its answer so far, too
    n_prompt: int
    max_tokens: int
    conversation: int
    arrived_s: float
    state: State = State.WAITING
    cache: SequenceCache | None = None
    lift: Lift | None = None
    load_end_s: float = 0.0
    cached_tokens: int | None = None
    reuse: Reuse | None = None
    tenant: str = ""
    name: str = ""
    is_refused: bool = False
    entered_s: float | None = None
    first_s: float | None = None
    ended_s: float = 0.0
    end_step: int = 0
    read_bytes: float = 0.0  # as it counts in `Reads`
    read_slope: float = 0.0
    _start_step: int = 0
    _start_tokens: int = 0

    @property
    def filler(self) -> int:
        return -1 - self.index

    @property
    def n_computed(self) -> int:
        """Committed; one that decodes may have computed more."""
        return 0 if self.cache is None else self.cache.n_tokens

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def n_longest(self) -> int:
        return self.n_prompt + self.max_tokens - 1

    def decodes_from(self, step: int) -> None:
        """It got a token at that step's end, and gets one at the end of each from now on."""
        n_generated = len(self.tokens) - self.n_prompt + 1
        self._start_step, self._start_tokens = step, self.n_computed
        self.end_step = step + self.max_tokens - n_generated

    def computed_after(self, step: int) -> int:
        return self._start_tokens + step - self._start_step

    def step_of(self, position: int) -> int:
        """That computes the token at a position."""
        return self._start_step + position - self._start_tokens + 1

    def keep_answer(self, step: int) -> None:
        """It is parked after a step: what it has said is part of what it will compute."""
        n_generated = self.computed_after(step) + 1 - self.n_prompt
        answer = filled(n_generated, self.filler)
        self.tokens = _as_tokens(np.concatenate([self.tokens[: self.n_prompt], answer]))
        self.end_step = 0


class Turns:
    """Who is sent when: at the trace's own times, or when what it waits for has ended.

    In a closed loop at most `n_users` conversations go on at a time, in the order of the trace.
    """

    def __init__(self, trace: Trace, speed: float, n_users: int | None) -> None:
        self._trace = trace
        self._speed = speed
        self._block_tokens = trace.block_tokens or 1
        self._coming: list[tuple[float, int]] = []  # heap of (time, index)
        self._n_awaited: list[int] = []
        self._ready_s: list[float] = []
        self._dependents: dict[int, list[tuple[int, float]]] = {}
        self._n_open = [0] * (1 + max(r.conversation for r in trace.requests))
        self._heads: dict[int, list[int]] = {}
        self._arrivals = 0
        for index, request in enumerate(trace.requests):
            self._n_open[request.conversation] += 1
            self._n_awaited.append(len(request.after))
            self._ready_s.append(0.0)
            for before, delay_s in request.after:
                self._dependents.setdefault(before, []).append((index, delay_s))
            if not request.after:
                self._heads.setdefault(request.conversation, []).append(index)
        self._conversations = deque(self._heads)
        n_begin = len(self._conversations)
        if trace.is_closed_loop and n_users is not None:
            n_begin = min(n_begin, n_users)
        for _ in range(n_begin):
            self._begin(0.0)

    @property
    def next_s(self) -> float:
        """When the next one is sent; infinite where that waits for others, or all were."""
        return self._coming[0][0] if self._coming else math.inf

    def arrived(self, now_s: float) -> Iterator[Served]:
        while self._coming and self._coming[0][0] <= now_s:
            at_s, index = heapq.heappop(self._coming)
            request = self._trace.requests[index]
            self._arrivals += 1
            yield Served(
                index=index,
                arrival=self._arrivals,
                tokens=prompt_tokens(request, self._block_tokens, -1 - index),
                n_prompt=request.prompt_tokens,
                max_tokens=max(1, request.output_tokens),
                conversation=request.conversation,
                arrived_s=at_s,
            )

    def end(self, served: Served, now_s: float) -> None:
        for index, delay_s in self._dependents.pop(served.index, ()):
            self._n_awaited[index] -= 1
            self._ready_s[index] = max(self._ready_s[index], now_s + delay_s / self._speed)
            if not self._n_awaited[index]:
                heapq.heappush(self._coming, (self._ready_s[index], index))
        self._n_open[served.conversation] -= 1
        if not self._n_open[served.conversation] and self._trace.is_closed_loop:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        """The next conversation, if there is one."""
        if self._conversations:
            for index in self._heads.pop(self._conversations.popleft()):
                at_s = now_s + self._trace.requests[index].arrival_s / self._speed
                heapq.heappush(self._coming, (at_s, index))
