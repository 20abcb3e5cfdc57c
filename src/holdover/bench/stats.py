"""What samples come to: percentiles of times, throughput, goodput, reuse, faults.

Only requests that finished are measured; failed ones are counted. Keys end in their unit. `ttft` is
the time to the first text, `per_token` (TPOT) from the first text to the last for each token after
the first, `inter_token` (ITL) between two events with text, which is the time per token where a
server sends each by itself; `request` is the whole of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdover.bench.answers import kind_of
from holdover.bench.client import Sample
from holdover.bench.spread import PERCENTS, percentile
from holdover.errors import ConfigError

TIMES: dict[str, Callable[[Sample], Sequence[float]]] = {
    "ttft": lambda s: () if s.ttft_s is None else (s.ttft_s,),
    "per_token": lambda s: () if s.per_token_s is None else (s.per_token_s,),
    "inter_token": lambda s: s.gaps_s,
    "request": lambda s: (s.total_s,),
}


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request has to keep to be good; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def keeps(self, sample: Sample) -> bool:
        found = (sample.ttft_s, sample.per_token_s, sample.total_s)
        limits = (self.ttft_s, self.tpot_s, self.e2e_s)
        return all(
            limit is None or value is None or value <= limit
            for limit, value in zip(limits, found, strict=True)
        )


def parse_slo(text: str) -> Slo:
    """ttft=500ms,tpot=50ms,e2e=10s. Raises ConfigError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        factor = 0.001 if value.endswith("ms") else 1.0
        number = value.removesuffix("ms").removesuffix("s")
        try:
            limit_s = float(number) * factor
        except ValueError:
            limit_s = 0.0
        if name not in ("ttft", "tpot", "e2e") or not limit_s > 0 or not value.endswith("s"):
            raise ConfigError("--slo", f"{part!r}; write it as ttft=500ms,tpot=50ms,e2e=10s")
        found[f"{name}_s"] = limit_s
    return Slo(**found)


def stats(samples: Sequence[Sample], slo: Slo | None) -> dict[str, float]:
    """Flat figures; what has no value (no usage, no second token) is not there."""
    good = [sample for sample in samples if sample.error is None]
    found: dict[str, float] = {}
    for name, times in TIMES.items():
        values_s = [value for sample in good for value in times(sample)]
        for percent in PERCENTS:
            value = percentile(values_s, percent)
            if value is not None:
                found[f"{name}_p{percent}_ms"] = 1000 * value
    whole_s = wall_s(samples)
    output_tokens = sum(sample.output_tokens for sample in good)
    found["requests_per_s"] = _rate(len(good), whole_s)
    found["output_tokens_per_s"] = _rate(output_tokens, whole_s)
    prompts = [sample.prompt_tokens for sample in good if sample.prompt_tokens is not None]
    if prompts:
        found["total_tokens_per_s"] = _rate(output_tokens + sum(prompts), whole_s)
        first_s = sum(sample.ttft_s or 0.0 for sample in good)
        found["prompt_tokens_per_s"] = _rate(sum(prompts), first_s)
        cached = [sample.cached_tokens for sample in good if sample.cached_tokens is not None]
        if cached:
            found["cached_share"] = sum(cached) / max(1, sum(prompts))
    if slo is not None:
        kept = sum(map(slo.keeps, good))
        found["goodput_requests_per_s"] = _rate(kept, whole_s)
        found["good_share"] = kept / max(1, len(samples))
    return found


def counts(samples: Sequence[Sample], exact: bool) -> dict[str, Any]:
    """Whole numbers. `exact`: answers of exactly the tokens asked for were wanted."""
    good = [sample for sample in samples if sample.error is None]
    bad = [sample for sample in samples if sample.error is not None]
    return {
        "requests": len(samples),
        "finished": len(good),
        "errors": dict(Counter(str(sample.error) for sample in bad)),
        "error_examples": {str(s.error): s.error_detail for s in reversed(bad)},
        "retried": sum(sample.tries > 1 for sample in samples),
        "prompt_tokens": _sum_known([sample.prompt_tokens for sample in good]),
        "cached_tokens": _sum_known([sample.cached_tokens for sample in good]),
        "longest_prompt_tokens": max((s.prompt_tokens or 0 for s in good), default=0),
        "output_tokens": sum(sample.output_tokens for sample in good),
        "output_events": sum(sample.events for sample in good),
        "token_counts": "events" if any(sample.counted for sample in good) else "usage",
        "truncated": sum(truncated(sample, exact) for sample in good),
        "answers": dict(Counter(map(kind_of, good))),
        "wall_s": wall_s(samples),
    }


def truncated(sample: Sample, exact: bool) -> bool:
    """It ended too early: before the tokens asked for where `exact`, else at their limit."""
    if exact:
        return not sample.counted and sample.output_tokens < sample.asked_tokens
    return sample.finish_reason == "length"


def less_is_better(name: str) -> bool:
    return name.endswith("_ms")


def wall_s(samples: Sequence[Sample]) -> float:
    """From the first request's start to the last one's end."""
    if not samples:
        return 0.0
    return max(s.end_s for s in samples) - min(s.start_s for s in samples)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _sum_known(values: Sequence[int | None]) -> int | None:
    """None if no server said."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
