"""Who is next touched in which step."""

from __future__ import annotations

import heapq

from holdover.simulate.served import Served

NEVER = 1 << 62  # a step


class Agenda:
    """Steps to come; of each sequence the last word counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Served]] = []  # step, arrival, stamp
        self._stamps: dict[Served, int] = {}
        self._n_added = 0

    @property
    def next_step(self) -> int:
        heap = self._heap
        while heap and self._stamps.get(heap[0][3]) != heap[0][2]:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER

    def add(self, served: Served, step: int) -> None:
        self._n_added += 1
        self._stamps[served] = self._n_added
        heapq.heappush(self._heap, (step, served.arrival, self._n_added, served))

    def drop(self, served: Served) -> None:
        self._stamps.pop(served, None)

    def take(self, step: int) -> list[Served]:
        """Those of a step, by arrival."""
        taken = []
        while self.next_step == step:
            served = heapq.heappop(self._heap)[3]
            del self._stamps[served]
            taken.append(served)
        return taken
