"""The native backend: attention over the paged cache and encoding into it, in C++.

`availability` says whether it was built and for which instruction sets; `backend` binds it. The
C++ sources are in `native/`; all they know of a cache comes from the layout, through `backend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdover.kernels.base import KernelBackend
from holdover.kernels.native.availability import refusal as refusal
from holdover.kernels.native.availability import require
from holdover.spec.layers import Attended
from holdover.spec.layout import ALIGNMENT, CacheLayout
from holdover.spec.limits import Limits
from holdover.units import ceil_div, round_up

if TYPE_CHECKING:
    from torch import Tensor

    from holdover.kernels._centre import Centres


def workspace_bytes(layout: CacheLayout, limits: Limits, query_heads: int) -> int:
    """Scratch of each thread, and room for the partial results of long sequences."""
    native = require(layout)
    needs: list[int] = []
    context_tokens = limits.max_context_tokens
    peaks = layout.peak_blocks(context_tokens, limits.step_tokens)
    for block, peak_blocks in zip(layout.blocks, peaks, strict=True):
        # Of a window, what lies in it: partial results begin at multiples of their size.
        most_tokens = peak_blocks * block.block_tokens + 2 * native.SPLIT_TOKENS
        attended = Attended.of(block.group.planes)
        assert attended is not None
        needs.append(
            native.workspace_bytes(
                kv_heads=attended.heads,
                query_heads=query_heads,
                dim=attended.query_dim,
                value_dim=attended.values.dim,
                threads=limits.threads,
                max_sequences=limits.max_sequences,
                max_context_tokens=min(context_tokens, most_tokens),
            )
        )
    choices = _choices_bytes(layout, limits, query_heads)
    return round_up(max(needs), ALIGNMENT) + choices if choices else max(needs)


def _choices_bytes(layout: CacheLayout, limits: Limits, query_heads: int) -> int:
    """What of it sparse layers choose in."""
    native, block_tokens = require(layout), layout.spec.block_tokens
    needs = [0]
    for group in layout.spec.groups:
        if group.sparse is not None:
            heads = {plane.name: plane.heads for plane in group.planes}
            most_blocks = ceil_div(limits.max_context_tokens, block_tokens)
            needs.append(
                native.choices_bytes(
                    kv_heads=heads["k"],
                    query_heads=query_heads,
                    read_blocks=group.sparse.read_blocks,
                    most_blocks=most_blocks,
                    max_sequences=limits.max_sequences,
                )
            )
    return max(needs)


def bind(
    arena: Tensor,
    layout: CacheLayout,
    limits: Limits,
    workspace: Tensor,
    centres: Centres | None = None,
) -> KernelBackend:
    from holdover.kernels.native.backend import Native

    return Native.bind(require(layout), arena, layout, limits, workspace, centres or {})
