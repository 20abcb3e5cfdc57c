"""What a kernel backend is.

The engine makes one `AttentionBatch` of flat arrays per step; a backend turns it into an
`AttentionStep`, which the model calls once per layer to write the new rows and to attend. A backend
reads shapes, offsets and element order from the layout and owns none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from holdover.kernels._centre import Centres


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The sequences of one step, flat: sequence s owns tokens [query_start[s], query_start[s+1]).
    There may be none, where all logits follow from rows of earlier steps.

    `context_tokens[s]` counts the tokens of s in the cache, those of this step included, so its
    queries stand at positions [context - queries, context). `block_tables[group]` is
    [sequences, blocks]; entry b holds the block of tokens [b * block_tokens, ...), or -1 where no
    query of this step may look. Queries at positions from `prompt_tokens[s]` on decode: where
    layers are sparse they read few blocks (`spec.sparse`), however many are computed at once.
    None: all are of prompts.
    """

    query_start: NDArray[np.int32]  # [sequences + 1]
    context_tokens: NDArray[np.int32]  # [sequences]
    block_tables: tuple[NDArray[np.int32], ...]  # per group [sequences, blocks]
    prompt_tokens: NDArray[np.int32] | None = None  # [sequences]


class AttentionStep(Protocol):
    """One step's view of the cache, as the model sees it."""

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        """Encode and store the step's new rows: per plane [tokens, heads, dim]."""

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
        """Causal attention of `query` [tokens, query_heads, head_dim] over the layer's rows.

        Over planes `latent` and `rope` a query has the dims of both, one behind the other, and
        what is mixed are the latents.

        Scores are multiplied by `scale`, then passed through softcap * tanh(x / softcap) if that is
        not 0. Returns [tokens, query_heads, v dim] in the query's dtype. Rows written by `write` in
        this step are seen.

        `sink_query`, like `query`, is what meets the residency's sinks in its place: turned to its
        place among what is kept (StreamingLLM, arXiv 2309.17453). `sink_logits`, fp32
        [query_heads], are learned sinks (gpt-oss): each one more term of its head's softmax, after
        scale and softcap, whose value is zero.
        """


class KernelBackend(Protocol):
    """Bound to one arena and one scratch buffer of exactly `workspace_bytes`."""

    def begin(self, batch: AttentionBatch) -> AttentionStep: ...


class KernelModule(Protocol):
    """What a backend's file offers. Importing it does not import torch."""

    def refusal(self, layout: CacheLayout) -> str | None:
        """Why this backend cannot serve the layout here, in words; None: it can."""

    def workspace_bytes(self, layout: CacheLayout, limits: Limits, query_heads: int) -> int:
        """Scratch bytes that suffice for any step within the limits, at `query_heads` or fewer.

        `limits.threads` of them may compute at once.
        """

    def bind(
        self,
        arena: Tensor,
        layout: CacheLayout,
        limits: Limits,
        workspace: Tensor,
        centres: Centres | None = None,
    ) -> KernelBackend:
        """`arena` and `workspace` are one-dimensional uint8 tensors. `centres` reach as far as the
        limits' context."""
