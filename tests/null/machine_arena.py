"""A real, tiny arena whose rows say which tokens they were computed from."""

import numpy as np

from holdover.cache.manager import CacheManager
from holdover.cache.sequence import SequenceCache
from holdover.spec.layout import BlockLayout, CacheLayout
from holdover.spec.residency import step_blocks


class RowArena:
    """Each stored row is the CRC of its whole prefix: wrong reuse or a bad copy shows at once."""

    def __init__(self, layout: CacheLayout, n_sectors: int) -> None:
        self.layout = layout
        self.bytes = np.full(n_sectors * layout.sector_bytes, 0xEE, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes

    def copy(self, source: int, target: int, n_bytes: int) -> None:
        assert abs(source - target) >= n_bytes, "overlapping copy"
        self.bytes[target : target + n_bytes] = self.bytes[source : source + n_bytes]

    def view(self, offset: int, n_bytes: int) -> memoryview:
        return self.bytes[offset : offset + n_bytes].data

    def rows(self, manager: CacheManager, sequence: SequenceCache, position: int):
        """(group, one-element int32 view) of the rows of a token in every group; a block's last
        token has its bounds as well."""
        block_tokens = self.layout.spec.block_tokens
        index, slot = divmod(position, block_tokens)
        for group, block in enumerate(self.layout.blocks):
            number = int(manager.block_table(sequence, group)[index])
            if number < 0:
                continue
            base = self.layout.block_offset(group, number)
            for offset in _row_offsets(block, slot):
                yield group, self.bytes[base + offset : base + offset + 4].view(np.int32)

    def verify(self, manager: CacheManager, sequence: SequenceCache, prefix_crc: list[int]) -> None:
        for group, layout in enumerate(self.layout.blocks):
            live = step_blocks(
                layout.group.residency, sequence.n_tokens, sequence.n_tokens, layout.block_tokens
            )
            for position in range(sequence.n_tokens):
                if position // layout.block_tokens not in live:
                    continue
                found = [row for g, row in self.rows(manager, sequence, position) if g == group]
                slot = position % layout.block_tokens
                assert len(found) == len(_row_offsets(layout, slot)), "a live row has no block"
                for row in found:
                    value = row[0] if sequence.is_exact else row[0] & ~1
                    assert value == prefix_crc[position], f"wrong row at {position}"


def _row_offsets(block: BlockLayout, slot: int) -> list[int]:
    is_last = slot == block.block_tokens - 1
    of_tokens = [("token" in placed.field.axes, placed.offset) for placed in block.fields]
    return [at + 4 * slot * has_tokens for has_tokens, at in of_tokens if has_tokens or is_last]
