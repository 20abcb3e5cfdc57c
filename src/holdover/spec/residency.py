"""Which tokens of a layer stay live: the only liveness rules in the project.

The kernels' masks, the manager's need and release, prefix matching and the planner's peak all
come from `first_visible` and `sink_tokens` of one of these classes.

    query at position p reads        sinks            window
    keys                        [0 .. sinks)   [first_visible(p) .. p]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdover.units import ceil_div

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ints = TypeVar("Ints", int, "NDArray[np.int64]")
"""One integer, or an array of them: the rules are plain arithmetic on either."""


class Residency(Protocol):
    """A rule; instances are frozen, comparable and hashable, since equal rules share a group."""

    @property
    def sink_tokens(self) -> int:
        """Leading tokens that every query may read, whatever its position."""

    def first_visible(self, position: Ints) -> Ints:
        """Lowest key position, sinks apart, that the query at `position` may read."""

    def peak_starts(self, last_start: int, block_tokens: int) -> Iterable[int]:
        """Step starts, none past `last_start`, among which the most blocks are held."""


@dataclass(frozen=True, slots=True)
class Full:
    """Every token stays."""

    sink_tokens: int = 0

    def first_visible(self, position: Ints) -> Ints:
        return position * 0

    def peak_starts(self, last_start: int, block_tokens: int) -> Iterable[int]:
        return (last_start,)


@dataclass(frozen=True, slots=True)
class Window:
    """A query reads the last `window_tokens` tokens, itself included, and the sinks."""

    window_tokens: int
    sink_tokens: int = 0

    def first_visible(self, position: Ints) -> Ints:
        first = position - self.window_tokens + 1
        return first * (first > 0)

    def peak_starts(self, last_start: int, block_tokens: int) -> Iterable[int]:
        # From one step start to the next only a window's edge that leaves a block lets one go: most
        # is held at the end, or at the last start before the edge left one.
        yield last_start
        edge = last_start - (last_start - self.window_tokens + 2) % block_tokens
        if edge >= 0:
            yield edge


@dataclass(frozen=True, slots=True)
class Chunk:
    """A query reads its own chunk of `chunk_tokens` tokens up to itself (Llama 4)."""

    chunk_tokens: int
    sink_tokens: int = 0

    def first_visible(self, position: Ints) -> Ints:
        return position - position % self.chunk_tokens

    def peak_starts(self, last_start: int, block_tokens: int) -> Iterable[int]:
        # Most is held by a step that begins on a chunk's last token, for some alignment.
        yield last_start
        chunk_end = (last_start + 1) // self.chunk_tokens * self.chunk_tokens
        for end in range(
            chunk_end, max(0, chunk_end - block_tokens * self.chunk_tokens), -self.chunk_tokens
        ):
            yield end - 1


@dataclass(frozen=True, slots=True)
class Fixed:
    """`n_rows` rows whatever the length: a recurrent state (1), or the rows of an encoder's or an
    image's tokens. No `Residency`: it is written once or in place, and never released by position.
    """

    n_rows: int


@dataclass(frozen=True, slots=True)
class BlockRanges:
    """Blocks of one group that a sequence needs: [0, sink_stop) and [start, stop)."""

    sink_stop: int
    start: int
    stop: int

    @property
    def n_blocks(self) -> int:
        return self.sink_stop + self.stop - self.start

    def __contains__(self, block: int) -> bool:
        return block < self.sink_stop or self.start <= block < self.stop


def step_blocks(residency: Residency, start: int, stop: int, block_tokens: int) -> BlockRanges:
    """Blocks needed by a step that computes tokens [start, stop) on top of `start` stored ones.

    With `start == stop` these are the blocks that stay live between two steps.
    """
    first_block = residency.first_visible(start) // block_tokens
    stop_block = ceil_div(stop, block_tokens)
    sink_stop = min(ceil_div(min(residency.sink_tokens, stop), block_tokens), first_block)
    return BlockRanges(sink_stop, min(first_block, stop_block), stop_block)


def live_tokens(residency: Residency, n_tokens: int) -> int:
    """Stored tokens that the query at position `n_tokens` or a later one may still read."""
    first = min(residency.first_visible(n_tokens), n_tokens)
    return min(residency.sink_tokens, first) + n_tokens - first


def forgotten_tokens(residencies: Sequence[Residency], n_tokens: int) -> int | None:
    """Of `n_tokens` stored ones, those that no layer will ever read again; None where one reads
    all, whatever their number."""
    if not residencies or any(isinstance(residency, Full) for residency in residencies):
        return None
    return n_tokens - max(live_tokens(residency, n_tokens) for residency in residencies)


def sink_place(residency: Residency) -> int | None:
    """A query's place among the tokens that it reads, once its window has left the sinks.

    Before that its place is its position. From there sinks are seen (StreamingLLM, arXiv
    2309.17453), so that nothing is ever farther away than the window and the sinks are long; to
    the window's own tokens places and positions have the same distance. None without sinks.
    """
    if isinstance(residency, Window) and residency.sink_tokens:
        return residency.sink_tokens + residency.window_tokens - 1
    return None


def read_tokens(residency: Residency, n_tokens: int) -> int:
    """Most stored tokens that the step of any of the first `n_tokens` positions reads.

    The window itself for a window layer: the newest token's own row is among what it reads, so
    this is one more than what stays live between two steps once the window is full.
    """
    return peak_blocks(residency, n_tokens, step_tokens=1, block_tokens=1)


def peak_blocks(
    residency: Residency, context_tokens: int, step_tokens: int, block_tokens: int
) -> int:
    """Most blocks one sequence of `context_tokens` ever holds, in steps of at most `step_tokens`.

    The maximum is over every schedule, so a prefix hit of any length is covered.
    """
    if context_tokens == 0:
        return 0
    step = min(step_tokens, context_tokens)
    starts = residency.peak_starts(context_tokens - step, block_tokens)
    return max(step_blocks(residency, s, s + step, block_tokens).n_blocks for s in starts)
