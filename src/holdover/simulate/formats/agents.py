"""Recorded work of agents: a line for each conversation, its requests, and agents it called.

    id, block_size, requests   a conversation; ids of blocks compare inside it only
    t, in, out, think          a request: sent at t s, `think` s after the one before it ended
    p, h                       its first p blocks are those of the request before; then ranges of
                               ids as [[first, count], ...]
    agent_id, requests         an agent that was called, in place of a request: its own times from
                               0, its end at t, after duration_ms; who called it waits

Played in a closed loop: a request is sent when what it waited for has ended, and the time that a
person or a tool took has passed again. Source: callanjfox/kv-cache-tester.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from holdover.simulate.formats.base import Fields, SmallIds
from holdover.simulate.trace import Ids, Line, Request, Trace, TraceError

NAME = "agents' conversations as JSONL (block_size, requests with in, out, p, h, think)"
_MOST_ID = 1 << 40
_NESTED = 16  # agents that call agents


def recognises(first: str) -> bool:
    return first.startswith("{") and '"requests"' in first and '"block_size"' in first


def read(name: str, lines: Iterator[Line]) -> Trace:
    trace = _Trace(name)
    for number, text in lines:
        fields = Fields.of(name, number, text)
        trace.begin(fields)
        trace.chain(fields, 0.0, None)
    if trace.block_tokens is None:
        raise TraceError(name, None, "has no conversation")
    requests = tuple(trace.requests)
    return Trace(name, "agents", trace.block_tokens, requests, trace.n_conversations, True)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request of the trace as it was recorded."""

    index: int
    end_s: float


@dataclass(slots=True)
class _Trace:
    name: str
    block_tokens: int | None = None
    requests: list[Request] = field(default_factory=list)
    n_conversations: int = 0
    _ids: SmallIds = field(default_factory=SmallIds)

    def begin(self, fields: Fields) -> None:
        block_tokens = fields.whole("block_size", least=1)
        if self.block_tokens not in (None, block_tokens):
            raise fields.error(f"block_size is {block_tokens}, and {self.block_tokens} before")
        self.block_tokens = block_tokens
        self.n_conversations += 1

    def chain(
        self, fields: Fields, begin_s: float, caller: _Sent | None, depth: int = 0
    ) -> _Sent | None:
        """Requests one after the other, the first of them sent after `caller`'s; returns the last.

        `begin_s` is when the recording's own times begin.
        """
        last, blocks = caller, np.zeros(0, np.int32)
        waits: list[tuple[int, float]] = []  # last requests of agents, and when they ended
        if depth > _NESTED:
            raise fields.error(f"agents call agents more than {_NESTED} deep")
        for item in fields.items("requests"):
            request = Fields.within(fields.name, fields.line, item)
            if "requests" in request.values:
                end_s = begin_s + request.seconds("t")
                start_s = max(begin_s, end_s - request.seconds("duration_ms", 1e-3, 0.0))
                ended = self.chain(request, start_s, last, depth + 1)
                if ended is not None and ended is not last:
                    waits.append((ended.index, end_s))
                continue
            at_s = begin_s + request.seconds("t")
            blocks = self._blocks(request, blocks)
            after = self._after(request, at_s, last, waits)
            n_output = request.whole("out")
            n_prompt = request.whole("in", least=1)
            assert self.block_tokens is not None, "begun"
            if len(blocks) * self.block_tokens >= n_prompt + self.block_tokens:
                raise request.error(
                    f"in is {n_prompt}, which is less than {len(blocks)} blocks of "
                    f"{self.block_tokens} tokens"
                )
            self.requests.append(
                Request(
                    n_prompt, n_output, blocks, self.n_conversations - 1,
                    0.0 if after else at_s, after,
                )
            )  # fmt: skip
            last = _Sent(len(self.requests) - 1, at_s + request.seconds("api", default=0.0))
            waits = []
        return last

    def _after(
        self, request: Fields, at_s: float, last: _Sent | None, waits: list[tuple[int, float]]
    ) -> tuple[tuple[int, float], ...]:
        """What it waits for, and how long after that it is sent."""
        if waits:  # the time until agents have ended is theirs, not a person's
            own = [] if last is None else [(last.index, 0.0)]
            return (*own, *((index, max(0.0, at_s - end_s)) for index, end_s in waits))
        if last is None:
            return ()
        recorded_s = max(0.0, at_s - last.end_s)
        return ((last.index, request.seconds("think", default=recorded_s)),)

    def _blocks(self, request: Fields, before: Ids) -> Ids:
        n_shared = request.whole("p")
        if n_shared > len(before):
            raise request.error(f"p is {n_shared}; the request before has {len(before)} blocks")
        parts = [before[:n_shared]]
        for item in request.items("h"):
            if not (
                isinstance(item, list)
                and len(item) == 2
                and all(isinstance(n, int) and not isinstance(n, bool) for n in item)
                and 0 <= item[0] <= _MOST_ID
                and 0 <= item[1] <= request.whole("in")
            ):
                raise request.error(f"h holds {str(item)[:40]}, no range of ids [first, count]")
            first, count = item
            conversation = self.n_conversations
            parts.append(self._ids.of((conversation, i) for i in range(first, first + count)))
        return np.concatenate(parts)
