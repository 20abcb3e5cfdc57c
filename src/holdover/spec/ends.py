"""How much room the ends of prompts take: the hidden states from which their first answers follow.

    row   [width] in fp32: a token's residual stream behind the last layer, before the last norm

Some are kept from one step to the next; beside them are those of one step's sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.spec.dtypes import DType


@dataclass(frozen=True, slots=True)
class EndLayout:
    n_kept: int
    n_in_step: int
    width: int

    @classmethod
    def of(cls, n_kept: int, max_sequences: int, width: int) -> EndLayout:
        return cls(n_kept, max_sequences if n_kept else 0, width)

    @property
    def n_rows(self) -> int:
        return self.n_kept + self.n_in_step

    @property
    def nbytes(self) -> int:
        return self.n_rows * self.width * DType.FP32.item_bytes
