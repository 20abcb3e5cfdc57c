"""The cache of a whole model under one choice of codec: bytes of any length, by kind and by part.

All bytes come from `spec.memory`; this only adds them up. A `Cache` can be changed into that of
one tensor-parallel rank, or of the same model with a window in place of full attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from holdover.codecs.base import sized_kv_choice
from holdover.spec.memory import BLOCK_TOKENS, Kind, MemorySpec, StoredMemory, on_one_rank
from holdover.spec.residency import Full, Window
from holdover.units import ceil_div


@dataclass(frozen=True, slots=True)
class Cache:
    """`codec` is the text of `--kv`; `parts` are the memories as stored."""

    codec: str
    block_tokens: int
    parts: tuple[StoredMemory, ...]

    @classmethod
    def of(
        cls, memories: Iterable[MemorySpec], codec: str, block_tokens: int = BLOCK_TOKENS
    ) -> Cache:
        choice, memories = sized_kv_choice(codec), tuple(memories)
        choice.demand_layers(1 + max((max(m.layers) for m in memories), default=0))
        parts = tuple(StoredMemory.of(memory, choice, block_tokens) for memory in memories)
        return cls(codec, block_tokens, parts)

    def logical_bytes(self, n_tokens: int) -> int:
        return sum(part.logical_bytes(n_tokens) for part in self.parts)

    def held_bytes(self, n_tokens: int, step_tokens: int = 1) -> int:
        return sum(part.held_bytes(n_tokens, step_tokens) for part in self.parts)

    def held_by(self, users: int, n_tokens: int, shared_tokens: int = 0) -> int:
        """What `users` conversations of `n_tokens` hold, whose first `shared_tokens` are the same
        and there once."""
        shared_bytes = self.shared_bytes(n_tokens, shared_tokens) if users else 0
        return users * self.own_bytes(n_tokens, shared_tokens) + shared_bytes

    def own_bytes(self, n_tokens: int, shared_tokens: int) -> int:
        """What one of them holds beside the shared start."""
        return self.held_bytes(n_tokens) - self.shared_bytes(n_tokens, shared_tokens)

    def shared_bytes(self, n_tokens: int, shared_tokens: int) -> int:
        """Whole blocks of the shared start, of what keeps every token. The block that the newest
        row lies in is each conversation's own, shared start or not: so no conversation can take
        less by growing, where a row stands for many tokens and the newest waits for the others."""
        total = 0
        for part in self.parts:
            if part.memory.grows:
                per_row = part.memory.tokens_per_row
                others = max(0, n_tokens // per_row - 1) // part.block_tokens
                blocks = min(others, shared_tokens // (part.block_tokens * per_row))
                total += part.held_bytes(blocks * part.block_tokens * per_row)
        return total

    def logical_by_kind(self, n_tokens: int) -> dict[Kind, int]:
        total = dict.fromkeys(Kind, 0)
        for part in self.parts:
            total[part.memory.kind] += part.logical_bytes(n_tokens)
        return total

    @property
    def growing_bytes_per_token(self) -> Fraction:
        """What one more token adds at any length."""
        return sum((p.bytes_per_token for p in self.parts if p.memory.grows), Fraction(0))

    @property
    def first_bytes_per_token(self) -> Fraction:
        """What one token adds while no window is full."""
        return sum((part.bytes_per_token for part in self.parts), Fraction(0))

    @property
    def fixed_bytes(self) -> int:
        """What does not grow: full windows and chunks, states, encoder and image memory."""
        longest = 2**40
        return sum(p.logical_bytes(longest) for p in self.parts if not p.memory.grows)

    def with_codec(self, codec: str) -> Cache:
        return Cache.of((p.memory for p in self.parts), codec, self.block_tokens)

    def on_one_rank(self, n_ranks: int) -> Cache:
        """What the fullest of `n_ranks` tensor-parallel ranks stores."""
        if n_ranks == 1:
            return self
        memories = (on_one_rank(part.memory, n_ranks) for part in self.parts)
        return Cache.of(memories, self.codec, self.block_tokens)

    def windowed(self, window_tokens: int, sink_tokens: int) -> Cache:
        """The same with every full attention layer reading only sinks and a window; the blocks
        are laid out as before."""
        parts = (
            replace(part, memory=_windowed(part.memory, window_tokens, sink_tokens))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def can_be_windowed(self) -> bool:
        return any(p.memory.kind is Kind.ATTENTION and p.memory.grows for p in self.parts)


def _windowed(memory: MemorySpec, window_tokens: int, sink_tokens: int) -> MemorySpec:
    if memory.kind not in (Kind.ATTENTION, Kind.INDEXER) or not isinstance(memory.residency, Full):
        return memory
    rows = max(1, window_tokens // memory.tokens_per_row)
    sinks = ceil_div(sink_tokens, memory.tokens_per_row)
    label = f"{memory.label}, as window {window_tokens} and {sink_tokens} sinks"
    return replace(memory, residency=Window(rows, sinks), label=label)
