"""Finds sequences whose new rows are not finite, before they are committed and could be reused.

A value that is not finite stays in the residual stream, so the keys and values of the last layer
that stores any tell of all layers before it: one look a step. The exception is a type with a small
range, fp16, in which a finite row may be stored as infinity: then every layer is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


class WatchedStep:
    """An `AttentionStep` that remembers which tokens' new rows were wrong; see `Watching`."""

    def __init__(self, step: AttentionStep, layers: tuple[int, ...], most: float) -> None:
        self.step = step
        self.layers = layers
        self.most = most
        self._wrong: Tensor | None = None

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        self.step.write(layer, rows)
        if layer in self.layers:
            for of_plane in rows.values():
                largest = torch.linalg.vector_norm(of_plane.flatten(1), torch.inf, dim=1)
                self.note(~(largest <= self.most))  # NaN too

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float = 0.0) -> Tensor:
        return self.step.attend(layer, query, scale, softcap)

    def note(self, wrong: Tensor) -> None:
        self._wrong = wrong if self._wrong is None else self._wrong | wrong

    def damaged(self, query_start: NDArray[np.int32]) -> Sequence[int]:
        """Places in the batch of sequences with a row that is not finite as it is stored."""
        assert self._wrong is not None, "no watched layer was written"
        wrong = self._wrong.numpy(force=True)
        if not wrong.any():
            return ()
        found: list[int] = np.logical_or.reduceat(wrong, query_start[:-1]).nonzero()[0].tolist()
        return found
