"""A trace against one size of the arena, or against several: what came of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdover.bench.spread import PERCENTS, percentile
from holdover.cache.arena import NullArena
from holdover.cache.costs import Costs
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.cache.tiers.base import TierSpec
from holdover.errors import BudgetError, ConfigError
from holdover.plan.serving import arena_needed_bytes
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import Subject
from holdover.simulate.replay import Replay
from holdover.simulate.served import Served, Turns, prompt_tokens
from holdover.simulate.tiers import Clock, simulated_tiers
from holdover.simulate.trace import Trace
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.units import format_bytes, largest

_GONE_IN_A_ROW = 64  # conversations: those that ended before them are gone as well
Advance = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but the arena's size. `n_users` is of a closed loop; None: all at once."""

    subject: Subject
    costs: StepCosts
    links: LinkCosts
    tiers: tuple[TierSpec, ...] = ()
    eviction: str = "lru"
    max_sequences: int = 64
    step_tokens: int = 512
    max_context_tokens: int | None = None
    speed: float = 1.0
    n_users: int | None = None


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """Bytes are whole blocks; `read_bytes` came up from it."""

    hit_tokens: int
    read_bytes: int
    written_bytes: int
    held_bytes: int
    cap_bytes: int
    evicted_blocks: int
    refused_stores: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one size. Token counts are of requests that were served; times are simulated seconds."""

    asked: str  # as the size was given
    arena_bytes: int
    context_tokens: int  # the longest request that the arena holds
    requests: int
    refused: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: tuple[int | None, ...]  # of each request of the trace; None: refused
    arena_hit_tokens: int
    tiers: dict[str, TierOutcome]
    reasons: dict[str, int]  # why reuse ended, and of how many requests
    evicted_blocks: int
    lost_blocks: int  # evicted before a tier had them
    declined_loads: int
    parked: int
    held_conversations: int  # at the end, every whole block of their last prompt
    most_running: int
    mean_running: float
    span_s: float
    busy_s: float
    ttft_s: dict[str, float | None]
    queue_s: dict[str, float | None]
    request_s: dict[str, float | None]

    @property
    def hit_tokens(self) -> int:
        return self.arena_hit_tokens + sum(tier.hit_tokens for tier in self.tiers.values())

    @property
    def hit_rate(self) -> float:
        """Of all prompt tokens that were served."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class _Tally:
    """What the replay tells of each request that ends."""

    n_requests: int
    advance: Advance
    cached: list[int | None] = field(init=False)
    hits: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    n_ended: int = 0
    n_refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    request_s: list[float] = field(default_factory=list)
    last_of: dict[int, int] = field(default_factory=dict)  # conversation: request

    def __post_init__(self) -> None:
        self.cached = [None] * self.n_requests

    def take(self, served: Served) -> None:
        self.n_ended += 1
        if self.n_ended % 64 == 0 or self.n_ended == self.n_requests:
            self.advance(self.n_ended, self.n_requests)
        if served.is_refused:
            self.n_refused += 1
            return
        assert served.reuse is not None
        assert served.entered_s is not None
        assert served.first_s is not None
        self.cached[served.index] = served.cached_tokens
        self.hits.update(served.reuse.from_tiers)
        self.reasons[served.reuse.reason] += 1
        self.prompt_tokens += served.n_prompt
        self.output_tokens += served.max_tokens
        self.ttft_s.append(served.first_s - served.arrived_s)
        self.queue_s.append(served.entered_s - served.arrived_s)
        self.request_s.append(served.ended_s - served.arrived_s)
        self.last_of.pop(served.conversation, None)
        self.last_of[served.conversation] = served.index


def simulate(trace: Trace, setup: Setup, arena_bytes: int, asked: str, advance: Advance) -> Outcome:
    """Raises BudgetError for an arena that holds no request of the trace."""
    layout = setup.subject.layout
    n_sectors = arena_bytes // layout.sector_bytes
    limits = _limits(trace, setup, n_sectors, asked)
    clock = Clock()
    tiers = simulated_tiers(setup.tiers, layout, clock, setup.links)
    mover = Mover(layout, tiers, Costs(), clock) if tiers else None
    arena = NullArena(n_sectors * layout.sector_bytes)
    manager = CacheManager(layout, arena, eviction=setup.eviction, mover=mover)
    tally = _Tally(len(trace.requests), advance)
    turns = Turns(trace, setup.speed, setup.n_users)
    replay = Replay(manager, limits, setup.costs, clock, mover, tiers, turns, tally.take)
    replay.run()
    assert tally.n_ended == len(trace.requests), "a request was never served"
    return Outcome(
        asked=asked,
        arena_bytes=arena.nbytes,
        context_tokens=limits.max_context_tokens,
        requests=tally.n_ended,
        refused=tally.n_refused,
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        cached_tokens=tuple(tally.cached),
        arena_hit_tokens=tally.hits["arena"],
        tiers={
            tier.name: TierOutcome(
                hit_tokens=tally.hits[tier.name],
                read_bytes=tier.loads.link.moved_bytes,
                written_bytes=tier.written_bytes,
                held_bytes=tier.stats().held_bytes,
                cap_bytes=tier.stats().cap_bytes,
                evicted_blocks=tier.stats().evicted_blocks,
                refused_stores=tier.stats().refused_stores,
            )
            for tier in tiers
        },
        reasons=dict(tally.reasons.most_common()),
        evicted_blocks=manager.evicted_blocks,
        lost_blocks=manager.lost_blocks,
        declined_loads=manager.declined_loads,
        parked=replay.parked_total,
        held_conversations=_held(trace, manager, tally, layout),
        most_running=replay.most_running,
        mean_running=replay.running_s / clock.now_s if clock.now_s else 0.0,
        span_s=clock.now_s,
        busy_s=replay.busy_s,
        ttft_s=_spread(tally.ttft_s),
        queue_s=_spread(tally.queue_s),
        request_s=_spread(tally.request_s),
    )


def sweep(
    trace: Trace, setup: Setup, sizes: Sequence[tuple[str, int]], advance: Advance
) -> list[Outcome]:
    """For each size, as it was asked for and in bytes of the arena."""
    outcomes: list[Outcome] = []
    total = len(sizes) * len(trace.requests)
    for number, (asked, arena_bytes) in enumerate(sizes):
        done = number * len(trace.requests)

        def count(n: int, _: int, done: int = done) -> None:
            advance(done + n, total)

        outcomes.append(simulate(trace, setup, arena_bytes, asked, count))
    return outcomes


def _limits(trace: Trace, setup: Setup, n_sectors: int, asked: str) -> Limits:
    """With the longest context, of those that the trace has, that the arena always holds."""
    layout = setup.subject.layout
    most = min(trace.longest_tokens + 1, setup.max_context_tokens or math.inf)

    def limits(n_tokens: int) -> Limits:
        return Limits(setup.max_sequences, setup.step_tokens, n_tokens)

    arena_bytes = n_sectors * layout.sector_bytes
    most_tokens = largest(lambda n: arena_needed_bytes(layout, limits(n)) <= arena_bytes, int(most))
    shortest = min(r.prompt_tokens + max(1, r.output_tokens) for r in trace.requests)
    if most_tokens < shortest:
        if setup.max_context_tokens is not None and setup.max_context_tokens < shortest:
            raise ConfigError(
                "--max-context",
                f"{setup.max_context_tokens} tokens are fewer than the shortest request of "
                f"{trace.name} has; give {shortest} or more",
            )
        least = format_bytes(arena_needed_bytes(layout, limits(shortest)))
        raise BudgetError(
            f"{asked}: {format_bytes(arena_bytes)} of KV memory hold {most_tokens} tokens; the "
            f"shortest request of {trace.name} has {shortest}. It needs {least} of KV memory"
        )
    return limits(most_tokens)


def _held(trace: Trace, manager: CacheManager, tally: _Tally, layout: CacheLayout) -> int:
    """Conversations of which the arena has every whole block of the last prompt, or of a shorter
    one something."""
    if not manager.evicted_blocks:
        return len(tally.last_of)
    n_held = n_gone = 0
    for index in reversed(tally.last_of.values()):
        tokens = prompt_tokens(trace.requests[index], trace.block_tokens or 1, -1 - index)
        n_whole = (len(tokens) - 1) // layout.spec.block_tokens * layout.spec.block_tokens
        if manager.match(tokens).n_tokens >= max(1, n_whole):
            n_held, n_gone = n_held + 1, 0
            continue
        n_gone += 1
        if n_gone == _GONE_IN_A_ROW:
            break
    return n_held


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {f"p{percent}": percentile(values, percent) for percent in PERCENTS}
