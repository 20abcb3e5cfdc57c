"""The line that `--log-requests` prints for each request: what it took and how long, no content."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdover.engine.api import Event, Usage
from holdover.server.explain import Explained
from holdover.server.replies import total_usage


class Logged(Protocol):
    """The part of a job that stands in its line."""

    @property
    def name(self) -> str: ...

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...

    @property
    def n(self) -> int: ...

    @property
    def started_s(self) -> float: ...


@dataclass(slots=True)
class Tally:
    """What one request's events come to, over all of its answers."""

    output_tokens: int = 0
    ttft_s: float | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    reuse: Explained | None = None  # of the first answer that has ended

    def take(self, after_s: float, event: Event) -> None:
        """`after_s` is the time from the request's arrival to the event."""
        self.output_tokens += len(event.token_ids)
        if event.token_ids and self.ttft_s is None:
            self.ttft_s = after_s
        if event.finish_reason is not None:
            self.reasons[event.finish_reason] += 1

    def explained(self, explained: Explained) -> None:
        if self.reuse is None:
            self.reuse = explained

    def line(self, job: Logged, usages: Sequence[Usage | None], n_left: int) -> str:
        """`n_left` answers are still open: their client has gone."""
        reasons = self.reasons + Counter({"cancelled": n_left})
        ended = ", ".join(
            name if count == 1 else f"{count} x {name}" for name, count in reasons.items()
        )
        cached = (
            "-"
            if None in usages
            else total_usage(usages, job.n).prompt_tokens_details.cached_tokens
        )
        ttft = "-" if self.ttft_s is None else f"{self.ttft_s:.3f} s"
        return (
            f"{job.name}: prompt {sum(map(len, job.prompts))} tokens, "
            f"cached {cached}{self._from()}, output {self.output_tokens}, TTFT {ttft}, "
            f"total {time.perf_counter() - job.started_s:.3f} s, {ended}"
        )

    def _from(self) -> str:
        """Where it came from, and why it was no more."""
        if self.reuse is None:
            return ""
        reuse = self.reuse.reuse
        places = [f"{place} {n}" for place, n in reuse.from_tiers.items() if n]
        if reuse.requantised_tokens:
            places.append(f"requantised {reuse.requantised_tokens}")
        if reuse.prompt_end_was_kept:
            places.append("prompt end kept")
        return f" ({'; '.join([*places, self.reuse.reason])})"
