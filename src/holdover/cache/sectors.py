"""Block numbers of unlike groups out of one arena.

A sector is lent to one group while any of its blocks is in use and comes back when none is. Which
block lies where is arithmetic in `spec.layout`; this file only knows which numbers are free.
"""

from __future__ import annotations

from holdover.spec.layout import CacheLayout


class SectorPool:
    def __init__(self, layout: CacheLayout, n_sectors: int) -> None:
        self.n_sectors = n_sectors
        self._per_sector = layout.blocks_per_sector
        self._free_sectors = list(range(n_sectors - 1, -1, -1))
        # Per group: lent sectors that have a free block, and the numbers free in each.
        self._open: list[dict[int, list[int]]] = [{} for _ in layout.blocks]
        self._n_free = [0] * len(layout.blocks)

    def take(self, group: int) -> int | None:
        """A free block number, from a new sector if need be; None when a sector must come back."""
        if not self._open[group]:
            if not self._free_sectors:
                return None
            sector = self._free_sectors.pop()
            per = self._per_sector[group]
            if per == 1:
                return sector
            self._open[group][sector] = list(range((sector + 1) * per - 1, sector * per - 1, -1))
            self._n_free[group] += per
        sector = next(reversed(self._open[group]))
        return self._take_from(group, sector)

    def give(self, group: int, number: int) -> None:
        """Take a block back; its sector becomes free with its last block."""
        per = self._per_sector[group]
        if per == 1:
            self._free_sectors.append(number)
            return
        sector = number // per
        numbers = self._open[group].setdefault(sector, [])
        numbers.append(number)
        self._n_free[group] += 1
        if len(numbers) == per:
            del self._open[group][sector]
            self._n_free[group] -= per
            self._free_sectors.append(sector)

    def vacate(self, group: int) -> list[tuple[int, int]] | None:
        """Empty the group's least used sector into its others: (from, to) block numbers.

        None when the group's free blocks do not add up to a sector. The caller moves the bytes;
        the sector is free on return.
        """
        per = self._per_sector[group]
        if self._n_free[group] < per:
            return None
        sector = max(self._open[group], key=lambda s: len(self._open[group][s]))
        free = self._open[group].pop(sector)
        self._n_free[group] -= len(free)
        used = set(range(sector * per, (sector + 1) * per)) - set(free)
        moves = [
            (number, self._take_from(group, next(reversed(self._open[group]))))
            for number in sorted(used)
        ]
        self._free_sectors.append(sector)
        return moves

    def check(self, used: list[set[int]]) -> None:
        """Assert that exactly `used[group]` are in use and that each sector has one owner."""
        owners = [
            {n // per for n in numbers} for numbers, per in zip(used, self._per_sector, strict=True)
        ]
        lent = [sector for owner in owners for sector in owner]
        assert len(lent) == len(set(lent)), "a sector is lent to two groups"
        assert sorted(lent + self._free_sectors) == list(range(self.n_sectors)), "sectors lost"
        for group, owner in enumerate(owners):
            assert set(self._open[group]) <= owner, f"group {group} keeps an empty sector"
            free = [n for numbers in self._open[group].values() for n in numbers]
            per = self._per_sector[group]
            everything = [n for s in owner for n in range(s * per, (s + 1) * per)]
            assert sorted([*free, *used[group]]) == sorted(everything), f"group {group}: bad list"
            assert self._n_free[group] == len(free), f"group {group}: free count is wrong"

    def _take_from(self, group: int, sector: int) -> int:
        numbers = self._open[group][sector]
        number = numbers.pop()
        self._n_free[group] -= 1
        if not numbers:
            del self._open[group][sector]
        return number
