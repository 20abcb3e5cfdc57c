"""Blocks on their way from tiers into the arena, for sequences that wait for them.

    begin     what is there is pinned, blocks for the rest are taken, loads are asked for
    poll      a block that has come is filled and published at once, like one that was computed
    ended     nothing is held any more; the sequence is admitted by the match that now finds it all

A load that fails or takes too long only makes that match shorter. A tier has bytes of its own until
they are verified, so a lift can be dropped at any moment. A block that is on its way already is
waited for with whoever asked for it first, and comes as long as anyone waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdover.cache.blocks import Block
from holdover.cache.costs import Decision
from holdover.cache.matching import Reach
from holdover.cache.mover import Mover, Ticket
from holdover.cache.prefix import PrefixIndex
from holdover.cache.room import Room
from holdover.cache.tiers.base import Record

Fits = Callable[[Sequence[int], Sequence[int], Sequence[int], Sequence[int]], bool]
"""Whether new blocks, revived ones, and the rest of a promise of which some are shared fit."""


@dataclass(slots=True, eq=False)
class Lift:
    """`ended` when its sequence can be admitted: from the start where the decision was not to load.

    `n_tokens` can be reused if every load succeeds, `n_matched` without any.
    """

    n_tokens: int
    n_matched: int
    decision: Decision
    deadline_s: float = 0.0  # by the mover's clock
    n_to_come: list[int] = field(default_factory=list)  # blocks per group, promised and not held
    held: list[Block] = field(default_factory=list)
    targets: dict[Ticket, tuple[Block, Record]] = field(default_factory=dict)
    problem: str | None = None  # why a load failed
    ended: bool = False


class Lifts:
    def __init__(self, room: Room, index: PrefixIndex, mover: Mover, fits: Fits) -> None:
        self._room = room
        self._index = index
        self._mover = mover
        self._fits = fits
        self.under_way: dict[Lift, None] = {}

    def begin(
        self, reach: Reach, n_matched: int, promise: Sequence[int], decision: Decision
    ) -> Lift | None:
        """None where there is no room or tiers take no more loads."""
        n_new, n_revived, n_shared = ([0] * self._index.n_groups for _ in range(3))
        coming = self._coming()
        for record in reach.records:
            (n_shared if record in coming else n_new)[record.group] += 1
        for block in reach.blocks:
            n_shared[block.group] += 1
            n_revived[block.group] += not block.refs
        if not self._fits(n_new, n_revived, n_shared, promise):
            return None
        held = [new + shared for new, shared in zip(n_new, n_shared, strict=True)]
        n_to_come = [max(0, p - h) for p, h in zip(promise or held, held, strict=True)]
        deadline_s = self._mover.deadline_s(decision)
        lift = Lift(reach.n_tokens, n_matched, decision, deadline_s, n_to_come)
        self.under_way[lift] = None
        self._room.ref(reach.blocks)
        lift.held += reach.blocks
        for record in reach.records:
            if record in coming:
                ticket, block = coming[record]
                self._room.ref([block])
            else:
                asked = self._mover.load(record)
                if asked is None:
                    lift.problem = "tiers take no more loads"
                    break
                ticket, block = asked, self._room.allocate(record.group, 1)[0]
            lift.held.append(block)
            lift.targets[ticket] = (block, record)
        if not lift.targets:
            self.drop(lift)
            return None
        return lift

    def poll(self) -> bool:
        """Whether anything may have changed."""
        waiting: dict[Ticket, list[Lift]] = {}
        for lift in self.under_way:
            for ticket in lift.targets:
                waiting.setdefault(ticket, []).append(lift)

        def take(ticket: Ticket, data: memoryview | None, problem: str) -> None:
            found = [lift.targets.pop(ticket) for lift in waiting.get(ticket, ())]
            if not found:
                return  # of a lift that was dropped
            block, record = found[0]
            if data is None:
                for lift in waiting[ticket]:
                    lift.problem = problem
                return
            # numpy copies without the interpreter's lock, which the tiers' threads want meanwhile
            np.copyto(np.asarray(self._room.view(block)), np.asarray(data))
            block.is_exact = self._mover.is_exact(ticket)
            self._publish(block, record)

        self._mover.poll(take)
        any_under_way = bool(self.under_way)
        for lift in list(self.under_way):
            if lift.targets and self._mover.now_s() > lift.deadline_s:
                lift.problem = "the tier did not answer in time"
                others = {t for other in self.under_way if other is not lift for t in other.targets}
                self._mover.give_up(lift.targets.keys() - others)
            elif lift.targets:
                continue
            self.drop(lift)
        return any_under_way

    def is_coming(self) -> Callable[[Record], bool]:
        """Whether a record is on its way for someone."""
        return self._coming().__contains__

    def _coming(self) -> dict[Record, tuple[Ticket, Block]]:
        return {
            record: (ticket, block)
            for lift in self.under_way
            for ticket, (block, record) in lift.targets.items()
        }

    def drop(self, lift: Lift) -> None:
        """Hold nothing any more; what has come is cached."""
        if lift.ended:
            return
        lift.ended = True
        del self.under_way[lift]
        lift.targets.clear()
        self._room.unref(reversed(lift.held))  # tails are evicted before what they stand on
        lift.held.clear()

    def drop_latest(self) -> bool:
        """Make room for who computes; False when there is nothing to drop."""
        latest = next(reversed(self.under_way), None)
        if latest is None:
            return False
        latest.problem = "its room was wanted"
        self.drop(latest)
        return True

    def count(self, refs: dict[Block, int]) -> None:
        """Add what lifts hold."""
        for lift in self.under_way:
            for block in lift.held:
                refs[block] = refs.get(block, 0) + 1

    def _publish(self, block: Block, record: Record) -> None:
        blocks: list[Block | None] = [None] * self._index.n_groups
        blocks[record.group] = block
        self._index.publish(record.parent, record.tokens, blocks, record.start_tokens)
