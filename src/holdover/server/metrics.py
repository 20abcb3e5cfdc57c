"""Prometheus metrics of one server, in a registry of its own.

Gauges and token counters are read from one `engine.stats()` snapshot at each scrape; times and
request counts are recorded as they happen, on the event loop, where scrapes are answered too.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from holdover.cache.explain import Reuse
from holdover.cache.tiers.base import TierStats
from holdover.engine.api import EngineLike

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_GAP_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_WHOLE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_GAUGES = (
    ("planned_bytes", "kv_planned_bytes", "KV arena bytes the plan reserved"),
    ("allocated_bytes", "kv_allocated_bytes", "KV arena bytes really allocated"),
    ("held_bytes", "kv_held_bytes", "KV bytes in blocks that running sequences use"),
    (
        "logical_bytes",
        "kv_logical_bytes",
        "KV bytes of running sequences by the formula: prefixes not shared, blocks not rounded",
    ),
    ("cached_bytes", "kv_cached_bytes", "KV bytes in blocks kept only for reuse"),
)
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of admitted sequences"),
    ("cached_tokens", "cached_tokens", "Prompt tokens reused instead of computed"),
    ("generated_tokens", "generated_tokens", "Tokens generated"),
    ("parked_total", "parked", "Times a sequence was parked under memory pressure"),
    ("evicted_blocks", "evicted_blocks", "Cached blocks evicted"),
    ("steps", "steps", "Engine steps"),
    ("refused_total", "refused_requests", "Requests refused because too many waited"),
    (
        "declined_loads",
        "declined_loads",
        "Loads from tiers not made as slower than computing",
    ),
    ("lost_blocks", "lost_blocks", "Blocks evicted before any tier could take them"),
    (
        "requantised_tokens",
        "requantised_tokens",
        "Of the reused prompt tokens, those that a tier gave back in a denser codec's precision",
    ),
    (
        "kept_prompt_ends",
        "kept_prompt_ends",
        "First tokens without a prefill: the last hidden state of the same prompt was kept",
    ),
    (
        "decode_read_blocks",
        "decode_read_blocks",
        "Blocks that generated tokens' queries read, of each KV head of a sparse layer",
    ),
    ("decode_context_blocks", "decode_context_blocks", "Blocks of those queries' contexts"),
    (
        "decode_read_bytes",
        "decode_read_bytes",
        "KV bytes that generated tokens' queries read, where layers are sparse",
    ),
    ("decode_context_bytes", "decode_context_bytes", "KV bytes of those queries' contexts"),
)
_TIER_GAUGES = (
    ("held_bytes", "held_bytes", "Bytes held in a tier"),
    ("cap_bytes", "cap_bytes", "Bytes that a tier never exceeds"),
    ("blocks", "blocks", "Blocks that could be loaded from a tier"),
    ("read_bytes_per_s", "read_bytes_per_second", "Measured rate of loads; 0: none yet"),
)
_TIER_COUNTERS = (
    ("stored_blocks", "stored_blocks", "Blocks stored in a tier"),
    ("loaded_blocks", "loaded_blocks", "Blocks loaded from a tier"),
    ("failed_loads", "failed_loads", "Loads from a tier that failed"),
    ("refused_stores", "refused_stores", "Blocks that a tier did not take"),
    ("evicted_blocks", "evicted_blocks", "Blocks evicted from a tier"),
)


class Metrics:
    """All metrics; `text()` is the answer of /metrics."""

    def __init__(self, engine: EngineLike) -> None:
        registry = CollectorRegistry()
        registry.register(_EngineCollector(engine))
        self._registry = registry
        self.requests = Counter(
            "holdover_requests",
            "HTTP requests answered; status 499: the client left first",
            ("route", "status"),
            registry=registry,
        )
        self.answers = Counter(
            "holdover_answers", "Answers ended", ("finish_reason",), registry=registry
        )
        self.reused_tokens = Counter(
            "holdover_reused_tokens",
            "Prompt tokens reused, by where they lay",
            ("place",),
            registry=registry,
        )
        self.reuse_ends = Counter(
            "holdover_reuse_ends",
            "Answers by why no more of their prompt was reused; all: there was no more",
            ("reason",),
            registry=registry,
        )
        self.ttft_s = Times(
            "time_to_first_token", "From request to first token of an answer", _TTFT_S
        )
        self.gap_s = Times("inter_token_latency", "Between two tokens of one answer", _GAP_S)
        self.whole_s = Times(
            "request_duration", "From request to last token of an answer", _WHOLE_S
        )
        for times in (self.ttft_s, self.gap_s, self.whole_s):
            registry.register(times)

    def count_reuse(self, reuse: Reuse, reason: str) -> None:
        for place, n_tokens in reuse.from_tiers.items():
            self.reused_tokens.labels(place).inc(n_tokens)
        self.reuse_ends.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Times(Collector):
    """A histogram in seconds for what happens at every token: prometheus_client's own takes locks,
    and ten times as long. `buckets` are upper bounds, which are inside."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...]) -> None:
        self._name = f"holdover_{name}_seconds"
        self._text = text
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum_s = 0.0
        self._created_s = time.time()

    def observe(self, seconds: float, n: int = 1) -> None:
        """Count `n` of this length."""
        self._counts[bisect_left(self._buckets, seconds)] += n
        self._sum_s += n * seconds

    def collect(self) -> Iterable[Metric]:
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric((), list(zip(bounds, accumulate(self._counts), strict=True)), self._sum_s)
        family.add_sample(f"{self._name}_created", {}, self._created_s)
        yield family


class _EngineCollector(Collector):
    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()  # the registry would otherwise call collect() to learn the names

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        for attribute, name, text in _GAUGES:
            yield GaugeMetricFamily(f"holdover_{name}", text, getattr(stats, attribute))
        sequences = GaugeMetricFamily("holdover_sequences", "Sequences by state", labels=["state"])
        for state in ("running", "waiting", "parked"):
            sequences.add_metric([state], getattr(stats, state))
        yield sequences
        for attribute, name, text in _COUNTERS:
            yield CounterMetricFamily(f"holdover_{name}", text, getattr(stats, attribute))
        yield from _tiers(stats.tiers)


def _tiers(tiers: Mapping[str, TierStats]) -> Iterable[Metric]:
    for attribute, name, text in _TIER_GAUGES:
        gauge = GaugeMetricFamily(f"holdover_tier_{name}", text, labels=["tier"])
        for tier, stats in tiers.items():
            gauge.add_metric([tier], getattr(stats, attribute))
        yield gauge
    trouble = GaugeMetricFamily(
        "holdover_tier_trouble", "1 while a tier stores nothing; the log says why", labels=["tier"]
    )
    for tier, stats in tiers.items():
        trouble.add_metric([tier], float(stats.trouble is not None))
    yield trouble
    codecs = InfoMetricFamily(
        "holdover_tier_stored", "What blocks are stored in; arena: as they are", labels=["tier"]
    )
    for tier, stats in tiers.items():
        codecs.add_metric([tier], {"codec": stats.codec or "arena"})
    yield codecs
    for attribute, name, text in _TIER_COUNTERS:
        counter = CounterMetricFamily(f"holdover_tier_{name}", text, labels=["tier"])
        for tier, stats in tiers.items():
            counter.add_metric([tier], getattr(stats, attribute))
        yield counter
