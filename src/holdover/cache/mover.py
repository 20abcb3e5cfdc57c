"""What goes down to tiers, and whether what lies there is worth bringing up.

    down   offer      a sequence let go of a block: stored in the background, oldest offer first
           evicting   the last chance of a block that is not stored yet
    up     holds, runs, decide, load, poll    for lifts

Tiers are asked in the order in which they were given, and each has a queue of its own. On the
engine's thread a move costs one copy of a block, and at most `STORES_A_POLL` are made for a tier at
a time; the rest is the tiers' threads' work. Without tiers nothing waits and nothing is held.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from holdover.cache.blocks import Block
from holdover.cache.costs import Costs, Decision
from holdover.cache.tiers.base import Record, Tier, TierStats
from holdover.cache.unused import clear_unused
from holdover.spec.layout import CacheLayout

STORES_A_POLL = 16
# Times as long as a load was predicted to take: then it is computed instead.
PATIENCE = 4
LEAST_PATIENCE_S = 1.0
LOAD_REST_S = 0.001
REFUSED_REST_S = 0.02  # until a tier that was busy is asked again

Ticket = tuple[int, int]
"""Which tier, and its ticket."""


class _Queue:
    """What one tier is still to be given, the oldest first."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.blocks: OrderedDict[Block, None] = OrderedDict()
        self.refused_s = -REFUSED_REST_S

    def takes(self, block: Block) -> bool:
        """What is not exact is given to no tier that keeps exact bytes."""
        return block.is_exact or self.tier.codec is not None


class Mover:
    """Single-threaded; used by the manager only. `bind` comes before all else."""

    def __init__(
        self,
        layout: CacheLayout,
        tiers: Sequence[Tier],
        costs: Costs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells the seconds by which loads are late and busy tiers are asked again."""
        self._layout = layout
        self._tiers = tuple(tiers)
        self.costs = costs
        self.now_s = clock
        self._queues = tuple(map(_Queue, self._tiers))
        # Whether blocks can come back that are not exact.
        self.requantises = any(tier.codec is not None for tier in self._tiers)
        self._in_flight_bytes = [0] * len(self._tiers)
        self._under_way: dict[Ticket, int] = {}  # bytes of each load
        self.declined_loads = 0  # predicted to be slower than computing
        self.lost_blocks = 0  # evicted before any tier had them

    def bind(
        self, record_of: Callable[[Block], Record | None], view: Callable[[Block], memoryview]
    ) -> None:
        """How a published block is named, and its bytes."""
        self._record_of = record_of
        self._view = view

    @property
    def has_tiers(self) -> bool:
        return bool(self._tiers)

    # ---- down ---------------------------------------------------------------------------------

    def offer(self, block: Block) -> None:
        """A block that was just let go of; of no interest if it is not published."""
        if block.entry is None:
            return
        queues = [queue for queue in self._queues if queue.takes(block)]
        if queues:
            n_tokens = block.entry.n_tokens
            clear_unused(self._layout.blocks[block.group], self._view(block), n_tokens)
        for queue in queues:
            queue.blocks[block] = None

    def evicting(self, block: Block) -> None:
        """Called while the block is still published and whole."""
        waiting = [queue for queue in self._queues if block in queue.blocks]
        if not waiting:
            return
        is_kept = len(waiting) < sum(queue.takes(block) for queue in self._queues)
        for queue in waiting:
            del queue.blocks[block]
            is_kept |= self._store(queue.tier, block)
        self.lost_blocks += not is_kept

    def _store(self, tier: Tier, block: Block) -> bool:
        """Whether the tier has it or has taken it."""
        record = self._record_of(block)
        if record is None:
            return True
        if not tier.store(record, self._view(block)):
            return False
        if block.pinned_until_s:
            tier.pin(record, block.pinned_until_s)
        return True

    def pin(self, record: Record, until_s: float) -> None:
        for tier in self._tiers:
            tier.pin(record, until_s)

    # ---- up -----------------------------------------------------------------------------------

    def holds(self, key: bytes, group: int) -> bool:
        return any(tier.holds(key, group) for tier in self._tiers)

    def stats(self) -> dict[str, TierStats]:
        return {tier.name: tier.stats() for tier in self._tiers}

    def places(self, record: Record) -> dict[str, int]:
        """The tiers that hold it by name, and its bytes there."""
        return {tier.name: tier.stored_bytes(record.group) for tier in self._holding(record)}

    def delete(self, record: Record) -> int:
        """From how many tiers it was removed."""
        holding = self._holding(record)
        for tier in holding:
            tier.delete(record)
        return len(holding)

    def runs(self, parent: bytes) -> Iterable[Record]:
        return [record for tier in self._tiers for record in tier.runs(parent)]

    def decide(
        self, records: Sequence[Record], n_tokens: int, loading: Callable[[Record], bool]
    ) -> Decision:
        """Whether loading `records` is predicted to be faster than computing `n_tokens`; what is
        `loading` already is not read again."""
        places = [self._tier_of(record) for record in records]
        n_bytes = [0] * len(self._tiers)
        for place, record in zip(places, records, strict=True):
            n_bytes[place] += 0 if loading(record) else self._nbytes(record)
        load_s = 0.0
        for place in set(places):
            rate = self._tiers[place].stats().read_bytes_per_s
            if rate:  # before the first load nobody knows: it is the measurement
                load_s = max(load_s, (n_bytes[place] + self._in_flight_bytes[place]) / rate)
        [(most, _)] = Counter(places).most_common(1)
        decision = Decision(load_s, self.costs.compute_s(n_tokens), self._tiers[most].name)
        self.declined_loads += not decision.pays
        return decision

    def deadline_s(self, decision: Decision) -> float:
        """By when loads that begin now should have ended, by the clock."""
        return self.now_s() + max(LEAST_PATIENCE_S, PATIENCE * decision.load_s)

    def load(self, record: Record) -> Ticket | None:
        place = self._tier_of(record)
        number = self._tiers[place].load(record)
        if number is None:
            return None
        ticket = (place, number)
        self._under_way[ticket] = self._nbytes(record)
        self._in_flight_bytes[place] += self._under_way[ticket]
        return ticket

    def is_exact(self, ticket: Ticket) -> bool:
        """Whether what comes is what was stored, to the byte."""
        return self._tiers[ticket[0]].codec is None

    def poll(self, take: Callable[[Ticket, memoryview | None, str], None]) -> None:
        """Hand over loads that ended, and store some of what waits."""
        for place, tier in enumerate(self._tiers):

            def taken(
                number: int, data: memoryview | None, problem: str, place: int = place
            ) -> None:
                self._landed((place, number))
                take((place, number), data, problem)

            tier.poll(taken)
        for queue in self._queues:
            self._store_some(queue)

    def _store_some(self, queue: _Queue) -> None:
        if self.now_s() - queue.refused_s < REFUSED_REST_S:
            return
        for _ in range(min(STORES_A_POLL, len(queue.blocks))):
            block = next(iter(queue.blocks))
            if block.entry is not None and not self._store(queue.tier, block):
                queue.refused_s = self.now_s()
                return
            del queue.blocks[block]

    @property
    def waiting_blocks(self) -> int:
        """That are to be stored."""
        return sum(len(queue.blocks) for queue in self._queues)

    @property
    def rest_s(self) -> float | None:
        """How long `poll` may wait when nothing else is to be done; None: for ever."""
        if self._under_way:
            return LOAD_REST_S
        return REFUSED_REST_S if self.waiting_blocks else None

    def give_up(self, tickets: Iterable[Ticket]) -> None:
        """Loads that nobody waits for any more."""
        for ticket in tickets:
            self._landed(ticket)

    def close(self, wait_s: float) -> None:
        """Store what waits, for at most `wait_s`, and end the tiers."""
        stop_s = time.monotonic() + wait_s
        while self.waiting_blocks and time.monotonic() < stop_s:
            self.poll(lambda ticket, data, problem: None)
            time.sleep(LOAD_REST_S)
        for tier in self._tiers:
            tier.close(max(0.0, stop_s - time.monotonic()))

    def _landed(self, ticket: Ticket) -> None:
        self._in_flight_bytes[ticket[0]] -= self._under_way.pop(ticket, 0)

    def _holding(self, record: Record) -> list[Tier]:
        return [tier for tier in self._tiers if tier.holds(record.key, record.group)]

    def _tier_of(self, record: Record) -> int:
        """The fastest that holds it; the last, should none do so any more."""
        places = range(len(self._tiers))
        holding = (i for i in places if self._tiers[i].holds(record.key, record.group))
        return next(holding, places[-1])

    def _nbytes(self, record: Record) -> int:
        return self._layout.blocks[record.group].nbytes
