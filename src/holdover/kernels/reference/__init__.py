"""The reference backend: attention over the paged cache in plain torch, in fp32.

Readable first, and the oracle for every other backend; vectorised over sequences, heads and
tokens, so that it also serves. `scratch` says how much scratch memory a step needs, `gathers`
works out once per step what each group of layers reads, and `backend` writes and attends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdover.kernels.base import KernelBackend
from holdover.kernels.reference.scratch import workspace_bytes as workspace_bytes
from holdover.spec.layers import Attended
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits

if TYPE_CHECKING:
    from torch import Tensor

    from holdover.kernels._centre import Centres


def refusal(layout: CacheLayout) -> str | None:
    """It serves every codec, over keys and values or over latents."""
    for block in layout.blocks:
        if Attended.of(block.group.planes) is None:
            names = ", ".join(plane.name for plane in block.group.planes)
            return f"no kernels attend over {names}"
    return None


def bind(
    arena: Tensor,
    layout: CacheLayout,
    limits: Limits,
    workspace: Tensor,
    centres: Centres | None = None,
) -> KernelBackend:
    from holdover.kernels.reference.backend import Reference

    return Reference.bind(arena, layout, workspace, centres or {})
