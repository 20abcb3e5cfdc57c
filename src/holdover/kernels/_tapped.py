"""A step around another, which hands over the queries and keys of every layer as they come by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from holdover.kernels.base import AttentionStep

if TYPE_CHECKING:
    from torch import Tensor

Take = Callable[[Literal["q", "k"], int, "Tensor"], None]
"""Called with what they are, their layer, and rows fp32 [tokens, heads, dim]."""


class TappedStep:
    """An `AttentionStep` for looking on.

    A model that attends by itself, through `step`, calls `take` too.
    """

    def __init__(self, step: AttentionStep, take: Take) -> None:
        self.step = step
        self.take = take

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        self.take("k", layer, rows["k"].float())
        self.step.write(layer, rows)

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
        self.take("q", layer, query.float())
        return self.step.attend(
            layer, query, scale, softcap, sink_query=sink_query, sink_logits=sink_logits
        )
