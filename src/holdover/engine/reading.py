"""How much of their contexts decoding queries read, where layers are sparse: counted by the rule,
which says how many blocks a query reads and leaves open only which."""

from __future__ import annotations

from holdover.engine.scheduler import Batch
from holdover.spec.layout import CacheLayout
from holdover.units import ceil_div


class ReadCounts:
    """Totals of all steps, where layers are sparse. Blocks are of one KV head of a layer."""

    def __init__(self, layout: CacheLayout) -> None:
        self._sparse = layout.spec.sparse
        self._block_tokens = layout.spec.block_tokens
        self._readings = tuple(block.reading for block in layout.blocks)
        self.read_blocks = 0
        self.context_blocks = 0
        self.read_bytes = 0
        self.context_bytes = 0

    def add(self, batch: Batch) -> None:
        if self._sparse is None:
            return
        starts, stops = batch.query_start.tolist(), batch.context_tokens.tolist()
        for s, (sequence, stop) in enumerate(zip(batch.sequences, stops, strict=True)):
            n_queries = starts[s + 1] - starts[s]
            for n_tokens in range(max(stop - n_queries, sequence.n_prompt) + 1, stop + 1):
                n_blocks = ceil_div(n_tokens, self._block_tokens)
                self.context_blocks += n_blocks
                self.read_blocks += min(n_blocks, self._sparse.read_blocks)
                self.read_bytes += sum(r.nbytes(n_tokens) for r in self._readings)
                self.context_bytes += sum(r.whole_nbytes(n_tokens) for r in self._readings)
