"""Which blocks a decoding query reads where few are enough (Quest, Tang et al. 2024, section 3).

    blocks of a context | sinks | candidates, of which the most promising are read | latest |

Of a full block's keys the least and the most are kept, of each dim: an upper bound of its scores
is the larger of q x least and q x most, summed over dims. As the largest score a query head
expects of a block what lies between the middle and that bound, `reach` of the way, is a better
guess than the bound itself (reach 1, the paper's). A block's promise is the share that it would
have of each head's softmax over all candidates, summed over the query heads that share its keys;
of equal ones the earlier is read. The bounds are of keys as they are attended, so they follow from
what is stored; a block that is not full is among the latest. Queries of prompts read all.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.spec.dtypes import DType
from holdover.spec.residency import Residency, read_tokens
from holdover.units import ceil_div

BOUNDS = "bounds"
"""The plane that bounds are kept in."""
BOUNDS_DTYPE = DType.BF16  # rounded outwards, so that they are bounds

LEAST_TOKENS = 64  # of candidates that are read: with fewer, answers lose their thread


@dataclass(frozen=True, slots=True)
class Sparse:
    """`blocks` candidates are read of each KV head; layers before `dense_layers` read all."""

    blocks: int
    sink_blocks: int = 1
    latest_blocks: int = 2
    dense_layers: int = 2
    reach: float = 0.5

    @property
    def read_blocks(self) -> int:
        """Blocks that a query reads, at most."""
        return self.sink_blocks + self.blocks + self.latest_blocks

    def first_position(self, prompt_tokens: int, block_tokens: int) -> int:
        """The first position whose query leaves something out."""
        return max(prompt_tokens, self.read_blocks * block_tokens)

    def read_tokens(self, n_tokens: int, block_tokens: int) -> int:
        """Of a context of `n_tokens`, those that its last query reads."""
        left_out = max(0, ceil_div(n_tokens, block_tokens) - self.read_blocks)
        return n_tokens - left_out * block_tokens

    def candidates(self, n_tokens: int, block_tokens: int) -> int:
        """Blocks whose bounds the last query of `n_tokens` reads."""
        n_blocks = ceil_div(n_tokens, block_tokens)
        if n_blocks <= self.read_blocks:
            return 0
        return n_blocks - self.sink_blocks - self.latest_blocks


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decoding query reads of one group, by the formula; bytes are of a block.

    `few_nbytes` are those of rows of sparse layers, `all_nbytes` of all other rows.
    """

    residency: Residency
    block_tokens: int
    all_nbytes: int
    few_nbytes: int = 0
    bounds_nbytes: int = 0
    sparse: Sparse | None = None

    def nbytes(self, n_tokens: int) -> int:
        """Of the query of token `n_tokens`."""
        n_read = read_tokens(self.residency, n_tokens)
        if self.sparse is None:
            return ceil_div(n_read * self.all_nbytes, self.block_tokens)
        rows = self.few_nbytes * self.sparse.read_tokens(n_read, self.block_tokens)
        rows += self.all_nbytes * n_read
        bounds = self.bounds_nbytes * self.sparse.candidates(n_read, self.block_tokens)
        return ceil_div(rows, self.block_tokens) + bounds

    def whole_nbytes(self, n_tokens: int) -> int:
        """The same, were nothing left out."""
        n_read = read_tokens(self.residency, n_tokens)
        return ceil_div(n_read * (self.all_nbytes + self.few_nbytes), self.block_tokens)
