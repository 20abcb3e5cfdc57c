"""A step around another, which looks for new rows that are not finite as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdover.kernels.base import AttentionStep

if TYPE_CHECKING:
    from torch import Tensor


class WatchedStep:
    """An `AttentionStep` that remembers which tokens' new rows were wrong.

    Those are rows of `layers` with a magnitude above `most`, or with no number. A model that writes
    rows by itself, through `step`, looks for them too and says of which tokens they are.
    """

    def __init__(self, step: AttentionStep, layers: Sequence[int], most: float) -> None:
        self.step = step
        self.layers = layers
        self.most = most
        self._wrong: NDArray[np.bool_] | None = None

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        import torch

        self.step.write(layer, rows)
        if layer in self.layers:
            for of_plane in rows.values():
                largest = torch.linalg.vector_norm(of_plane.flatten(1), torch.inf, dim=1)
                self.note((~(largest <= self.most)).numpy(force=True))  # NaN too

    def attend(
        self,
        layer: int,
        query: Tensor,
        scale: float,
        softcap: float = 0.0,
        *,
        sink_query: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        return self.step.attend(
            layer, query, scale, softcap, sink_query=sink_query, sink_logits=sink_logits
        )

    def note(self, wrong: NDArray[np.bool_]) -> None:
        """`wrong` is of [tokens]."""
        self._wrong = wrong if self._wrong is None else self._wrong | wrong

    def damaged(self, query_start: NDArray[np.int32]) -> Sequence[int]:
        """Places in the batch of sequences with a row that is not finite as it is stored."""
        assert self._wrong is not None, "no watched layer was written"
        if not self._wrong.any():
            return ()
        of_sequences = np.logical_or.reduceat(self._wrong, query_start[:-1])
        found: list[int] = of_sequences.nonzero()[0].tolist()
        return found
