"""Lines that are timed in rounds, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

PLAIN_BYTES = 256 * 2**20  # far more than any cache of the processor


@dataclass(frozen=True, slots=True)
class Line:
    """What is timed; `n_bytes` are read and `n_flops` done in each run."""

    name: str
    n_bytes: int
    run: Callable[[], object]
    clock: Callable[[], float]
    n_flops: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def time(self) -> None:
        start = self.clock()
        self.run()
        self.seconds.append(self.clock() - start)

    def show(self, plain_rate: float | None) -> None:
        median = statistics.median(self.seconds)
        rate = self.n_bytes / median
        share = "" if plain_rate is None else f"{rate / plain_rate:7.0%}"
        spread = f"{min(self.seconds) * 1e3:8.2f} .. {max(self.seconds) * 1e3:.2f}"
        flops = f"{self.n_flops / median / 1e9:8.1f} GFLOP/s" if self.n_flops else ""
        rates = f"{rate / 1e9:7.2f} GB/s{share}{flops}"
        print(f"{self.name:<28}{median * 1e3:9.2f} ms {spread:<22}{rates}")


def plain_memory(clock: Callable[[], float]) -> Line:
    """The bandwidth at which torch's threads read memory: the sum of 256 MiB."""
    memory = torch.ones(PLAIN_BYTES // 8, dtype=torch.int64)
    return Line("plain memory, summed", memory.nbytes, memory.sum, clock)


def measure(lines: Sequence[Line], rounds: int, plain: Line | None) -> None:
    """Rounds forwards and backwards in turn; the first two only warm up."""
    everything = [*([plain] if plain else []), *lines]
    for turn in range(rounds + 2):
        for line in everything if turn % 2 else reversed(everything):
            line.time()
    for line in everything:
        del line.seconds[:2]
    rate = plain.n_bytes / statistics.median(plain.seconds) if plain else None
    for line in everything:
        line.show(rate)
