"""How far the next-token distributions of two runs lie apart, token by token.

The figures are those of llama.cpp's `llama-perplexity --kl-divergence`: the mean and the 99th
percentile of KL(reference || other) in nats, how often both have the same most likely token, and
the perplexity of the text under each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SLICE_ROWS = 64  # rows whose distributions are worked out at a time


@dataclass(frozen=True, slots=True)
class Figures:
    """Over all scored tokens."""

    scored_tokens: int
    kl_mean: float
    kl_p99: float
    same_top: float  # share, 0 to 1
    perplexity: float
    perplexity_ratio: float  # to the reference's


class Divergence:
    """Gathers rows as steps are computed; keeps a few numbers of each, never its logits."""

    def __init__(self) -> None:
        self._kl: list[Tensor] = []
        self._same: list[Tensor] = []
        self._reference_nll: list[Tensor] = []
        self._nll: list[Tensor] = []

    def add(self, reference: Tensor, other: Tensor, targets: Tensor) -> None:
        """Logits float32 [rows, vocab] of both runs; `targets` int64 [rows] follow in the text."""
        for start in range(0, len(targets), SLICE_ROWS):
            rows = slice(start, start + SLICE_ROWS)
            p, q = reference[rows].log_softmax(-1), other[rows].log_softmax(-1)
            self._same.append(p.argmax(-1) == q.argmax(-1))
            at = targets[rows, None]
            self._reference_nll.append(-p.gather(-1, at).squeeze(-1))
            self._nll.append(-q.gather(-1, at).squeeze(-1))
            difference = p - q
            self._kl.append(difference.mul_(p.exp_()).sum(-1))

    def figures(self) -> Figures:
        kl = torch.cat(self._kl).double().clamp_(min=0).numpy()  # rounding can take it below 0
        nll, reference = (torch.cat(n).double().mean() for n in (self._nll, self._reference_nll))
        return Figures(
            scored_tokens=len(kl),
            kl_mean=float(kl.mean()),
            kl_p99=float(np.percentile(kl, 99)),
            same_top=float(torch.cat(self._same).double().mean()),
            perplexity=float(nll.exp()),
            perplexity_ratio=float((nll - reference).exp()),
        )
