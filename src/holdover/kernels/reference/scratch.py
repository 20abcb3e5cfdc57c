"""Scratch memory of the reference backend: what lies in the workspace, and how much is enough.

    workspace | keys, decoded | values, decoded | scores of some query rows |   all fp32

Keys and values are those of one sequence (prefill) or of several padded to the longest (decode).
Values that are part of the keys (MLA's latents) take no room of their own.
More scratch means more sequences or rows at a time; nothing else depends on its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.spec.groups import Group
from holdover.spec.layers import Attended
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.units import round_up

PREFILL_ROWS = 32  # query rows at a time that the workspace always has room for
DECODE_BYTES = 8 * 2**20  # enough to attend for a batch of short sequences in one go
FLOAT_BYTES = 4
_LINE_FLOATS = 16  # a cache line


@dataclass(frozen=True, slots=True)
class Scratch:
    """The parts of the workspace for one group of layers and a number of query heads."""

    attended: Attended
    query_heads: int

    @classmethod
    def of(cls, group: Group, query_heads: int) -> Scratch:
        attended = Attended.of(group.planes)
        assert attended is not None, group.planes
        return cls(attended, query_heads)

    def parts(self, tokens: int, rows: int) -> tuple[int, int, int]:
        """fp32 elements of keys, values and scores for `tokens` gathered tokens.

        `rows` query rows look at each of them.
        """
        attended = self.attended
        keys = attended.heads * attended.query_dim * tokens
        values = 0 if attended.values_are_keys else attended.heads * attended.values.dim * tokens
        scores = self.query_heads * rows * tokens
        return (
            round_up(keys, _LINE_FLOATS),
            round_up(values, _LINE_FLOATS),
            round_up(scores, _LINE_FLOATS),
        )

    def nbytes(self, tokens: int, rows: int) -> int:
        return sum(self.parts(tokens, rows)) * FLOAT_BYTES

    def most_rows(self, tokens: int, capacity_bytes: int) -> int:
        """Query rows over `tokens` gathered tokens that fit."""
        spare = (capacity_bytes - self.nbytes(tokens, rows=0)) // FLOAT_BYTES
        return spare // _LINE_FLOATS * _LINE_FLOATS // (self.query_heads * tokens)


def workspace_bytes(layout: CacheLayout, limits: Limits, query_heads: int) -> int:
    """Scratch bytes that suffice for any step within the limits.

    One sequence at its longest with PREFILL_ROWS query rows, or a batch of decoding sequences up
    to DECODE_BYTES, whichever is more, for the group that needs most.
    """
    needs = []
    peaks = layout.peak_blocks(limits.max_context_tokens, limits.step_tokens)
    for block, peak_blocks in zip(layout.blocks, peaks, strict=True):
        scratch = Scratch.of(block.group, query_heads)
        tokens = peak_blocks * block.block_tokens
        prefill = scratch.nbytes(tokens, min(PREFILL_ROWS, limits.step_tokens))
        decode = scratch.nbytes(tokens * limits.max_sequences, rows=1)
        needs.append(max(prefill, min(decode, DECODE_BYTES)))
    return max(needs)
