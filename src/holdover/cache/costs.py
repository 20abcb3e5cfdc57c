"""What computing a prompt costs, as measured while it runs: the other side of every load.

Means that forget: each step of some size counts for a fifth, so a machine that slows down is known
as slow within a few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_TOKENS = 32  # of a step that says something about the speed of a prefill
WEIGHT = 0.2
MEASURED_TOKENS = 128  # of the step that is measured before the first load


@dataclass(frozen=True, slots=True)
class Decision:
    """Two predictions, in seconds: to load a prefix, most of it from `tier`, and to compute it."""

    load_s: float
    compute_s: float
    tier: str = ""

    @property
    def pays(self) -> bool:
        return self.load_s < self.compute_s


class Costs:
    def __init__(self) -> None:
        self._token_s: float | None = None

    def observe(self, n_tokens: int, step_s: float) -> None:
        """A step that computed `n_tokens` took `step_s`."""
        if n_tokens < LEAST_TOKENS:
            return
        token_s = step_s / n_tokens
        if self._token_s is None:
            self._token_s = token_s
        else:
            self._token_s += WEIGHT * (token_s - self._token_s)

    def compute_s(self, n_tokens: int) -> float:
        """Infinite before the first measurement: then a load is tried."""
        return float("inf") if self._token_s is None else n_tokens * self._token_s
