"""Bytes of a block that no token of it has: behind a tail's last token, its bounds, between fields.

A block number is used again and again, so they hold what someone else's rows were: they are cleared
before a block leaves the arena for a tier.
"""

from __future__ import annotations

import numpy as np

from holdover.spec.layout import BlockLayout
from holdover.spec.sparse import BOUNDS


def clear_unused(layout: BlockLayout, block: memoryview, n_tokens: int) -> None:
    """`block` holds rows of its first `n_tokens`; nobody reads beyond."""
    if not len(block):
        return  # an arena with its memory switched off
    if layout.padding_nbytes:
        raw = np.asarray(block)
        for start, stop in layout.gaps():
            raw[start:stop] = 0
    if n_tokens == layout.block_tokens:
        return
    for placed in layout.fields:
        field = placed.field
        if "token" in field.axes:
            shape = (*field.shape, field.dtype.item_bytes)
            view = np.ndarray(shape, np.uint8, block, placed.offset)
            np.moveaxis(view, field.axes.index("token"), 0)[n_tokens:] = 0
        elif placed.plane == BOUNDS:  # made when a block is full: these are of who had it before
            np.asarray(block)[placed.offset : placed.offset + field.nbytes] = 0
