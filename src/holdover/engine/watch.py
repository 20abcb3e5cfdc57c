"""Finds sequences whose new rows are not finite, before they are committed and could be reused.

A value that is not finite stays in the residual stream, so the keys and values of the last layer
that stores any tell of all layers before it: one look a step. The exception is a type with a small
range, fp16, in which a finite row may be stored as infinity: then every layer is looked at.
"""

from __future__ import annotations

import torch

from holdover.kernels._watched import WatchedStep
from holdover.kernels.base import AttentionStep
from holdover.spec.dtypes import DType
from holdover.spec.layout import CacheLayout


class RowWatch:
    """Made once for a layout; `over` wraps each step."""

    def __init__(self, layout: CacheLayout) -> None:
        stored = [field for block in layout.blocks for field in block.fields]
        narrow = any(f.field.dtype is DType.FP16 and f.field.name == "data" for f in stored)
        layers = {f.layer for f in stored}
        self._layers = tuple(sorted(layers)) if narrow else (max(layers),)
        widest = DType.FP16 if narrow else DType.BF16
        self._most = torch.finfo(getattr(torch, widest.torch_name)).max

    def over(self, step: AttentionStep) -> WatchedStep:
        return WatchedStep(step, self._layers, self._most)
