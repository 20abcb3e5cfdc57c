"""The limits that size everything which is allocated once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`step_tokens` bounds one forward pass, `max_sequences` the sequences in it.

    `threads` compute it: a kernel backend may keep scratch memory for each.
    """

    max_sequences: int
    step_tokens: int
    max_context_tokens: int
    threads: int = 1
