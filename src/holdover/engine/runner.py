"""One step on the device: block tables from the cache, then the model's forward pass.

Reads the batch and the manager's block tables; changes only the arena's bytes, by the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdover.cache.ends import HiddenStates
from holdover.cache.manager import CacheManager
from holdover.cache.sequence import SequenceCache
from holdover.engine.reading import ReadCounts
from holdover.engine.scheduler import Batch
from holdover.engine.watch import RowWatch
from holdover.kernels.base import AttentionBatch, KernelBackend
from holdover.models.base import Model
from holdover.units import ceil_div


class Ran(NamedTuple):
    """`logits` float32 [the batch's sampled, vocab]; `damaged` sequences of the batch have new keys
    or values that are not finite. `hidden` [computed, width] are the last hidden states of the
    batch's computed sequences, until the next step: None where no prompt ends in this one."""

    logits: Tensor
    damaged: Sequence[int]
    hidden: HiddenStates | None


class Runner:
    def __init__(self, model: Model, kernels: KernelBackend, manager: CacheManager) -> None:
        self._model = model
        self._kernels = kernels
        self._manager = manager
        self._hidden = torch.from_numpy(manager.ends.step_rows)
        self._watch = RowWatch(manager.layout)
        self.reads = ReadCounts(manager.layout)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Ran:
        hidden = self._hidden_of(batch)
        step = self._watch.over(self._kernels.begin(attention_batch(batch, self._manager)))
        logits = self._model.forward(
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.positions),
            step,
            torch.from_numpy(batch.logit_rows),
            hidden,
        )
        self.reads.add(batch)
        damaged = step.damaged(batch.query_start) if batch.sequences else ()
        return Ran(
            logits, damaged, None if hidden is None else hidden[: len(batch.logit_rows)].numpy()
        )

    def _hidden_of(self, batch: Batch) -> Tensor | None:
        """Room for the hidden states that this step computes, and the known ones behind it."""
        if not len(self._hidden) or all(sequence.n_generated for sequence in batch.sampled):
            return None
        hidden = self._hidden[: len(batch.sampled)]
        for row, known in zip(hidden[len(batch.logit_rows) :], batch.known, strict=True):
            row.copy_(torch.from_numpy(known))
        return hidden


def attention_batch(batch: Batch, manager: CacheManager) -> AttentionBatch:
    caches = [sequence.cache for sequence in batch.sequences]
    tables = block_tables(caches, batch.context_tokens, manager)
    prompts = np.array([sequence.n_prompt for sequence in batch.sequences], dtype=np.int32)
    return AttentionBatch(batch.query_start, batch.context_tokens, tables, prompts)


def block_tables(
    caches: Sequence[SequenceCache | None], context_tokens: NDArray[np.int32], manager: CacheManager
) -> tuple[NDArray[np.int32], ...]:
    """Each group's, cut to the blocks that hold a token after this step."""
    block_tokens = manager.layout.spec.block_tokens
    n_blocks = [ceil_div(n, block_tokens) for n in context_tokens.tolist()]
    tables = []
    for group in range(len(manager.layout.blocks)):
        table = np.full((len(n_blocks), max(n_blocks, default=0)), -1, dtype=np.int32)
        for row, cache, n in zip(table, caches, n_blocks, strict=True):
            assert cache is not None
            row[:n] = manager.block_table(cache, group)[:n]
        tables.append(table)
    return tuple(tables)
