"""Teacher forcing through the cache that serves: its manager, arena, kernels and forward pass.

Every row is encoded as it is written and read as it is stored, by queries of the same step too; so
a text computed in steps of many tokens meets the same rows as one decoded token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdover.cache.arena import HostArena
from holdover.cache.manager import CacheManager
from holdover.cache.sequence import SequenceCache
from holdover.engine.build import find_centres
from holdover.engine.planning import Planned
from holdover.engine.runner import block_tables
from holdover.kernels.base import AttentionBatch, KernelBackend
from holdover.models.base import Model
from holdover.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ForcedCache:
    """One way of storing keys and values, with all that computes through it."""

    model: Model
    kernels: KernelBackend
    manager: CacheManager
    step_tokens: int

    @classmethod
    def of(cls, planned: Planned, model: Model, tokenizer: Tokenizer) -> ForcedCache:
        """With the sizes that the plan states."""
        plan = planned.plan
        arena = HostArena(plan.arena_bytes)
        workspace = torch.zeros(plan.parts.workspace_bytes, dtype=torch.uint8)
        centres = find_centres(planned, model, tokenizer)
        kernels = planned.kernels.bind(arena.bytes, plan.layout, plan.limits, workspace, centres)
        manager = CacheManager(plan.layout, arena)
        return cls(model, kernels, manager, plan.limits.step_tokens)

    def open(self, tokens: Sequence[int]) -> SequenceCache:
        """A sequence that will be fed `tokens`; its `n_tokens` are those found in the cache."""
        sequence = self.manager.admit(tokens, self.manager.match(tokens), 1)
        assert sequence is not None, "the arena was made for this"
        return sequence

    def close(self, sequence: SequenceCache, keep: bool = False) -> None:
        """Let go of a sequence; `keep` leaves its rows to be found again."""
        self.manager.release(sequence)
        if not keep:
            self.manager.evict()

    def feed_all(self, sequence: SequenceCache, tokens: Sequence[int]) -> None:
        """Compute what the sequence lacks of `tokens`, a prompt, step by step."""
        while sequence.n_tokens < len(tokens):
            start = sequence.n_tokens
            self.feed([(sequence, tokens[start : start + self.step_tokens])], 0, len(tokens))

    @torch.inference_mode()
    def feed(
        self,
        parts: Sequence[tuple[SequenceCache, Sequence[int]]],
        n_scored: int,
        n_prompt: int,
    ) -> Tensor:
        """One step: each sequence's next tokens; logits after the last `n_scored` of each.

        Tokens from `n_prompt` on are computed as generated ones.
        """
        lengths = [len(tokens) for _, tokens in parts]
        assert sum(lengths) <= self.step_tokens
        query_start = np.cumsum([0, *lengths], dtype=np.int32)
        stops = [sequence.n_tokens + len(tokens) for sequence, tokens in parts]
        for sequence, tokens in parts:
            has_room = self.manager.reserve(sequence, len(tokens))
            assert has_room, "the arena was made for this"
        context_tokens = np.array(stops, dtype=np.int32)
        prompts = np.full(len(parts), n_prompt, dtype=np.int32)
        tables = block_tables([sequence for sequence, _ in parts], context_tokens, self.manager)
        step = self.kernels.begin(AttentionBatch(query_start, context_tokens, tables, prompts))
        ends = query_start[1:].tolist()
        logits = self.model.forward(
            torch.tensor([token for _, tokens in parts for token in tokens]),
            torch.cat([torch.arange(n - k, n) for n, k in zip(stops, lengths, strict=True)]),
            step,
            torch.cat([torch.arange(end - n_scored, end) for end in ends]),
        )
        for sequence, tokens in parts:
            self.manager.commit(sequence, tokens)
        return logits
