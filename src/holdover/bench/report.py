"""What a run comes to: TTFT and inter-token percentiles, throughput, errors by kind.

Only requests that finished are measured; failed ones are counted. `inter_token` is the time between
two pieces of text, which for a server that sends each token by itself is the time per token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdover.bench.run import Run, wall_s
from holdover.bench.spread import percentile
from holdover.bench.workloads import WORKLOADS, Figure, WorkloadRun

BENCH_SCHEMA = "holdover.bench/1"
WORKLOAD_SCHEMA = "holdover.bench.workload/1"


def bench_json(run: Run) -> dict[str, Any]:
    """Times in ms under keys ending in `_ms`; `token_counts` says where counts come from."""
    good = [sample for sample in run.samples if sample.error is None]
    bad = [sample for sample in run.samples if sample.error is not None]
    output_tokens = sum(sample.output_tokens for sample in good)
    return {
        "schema": BENCH_SCHEMA,
        "url": run.load.target.url,
        "model": run.model,
        "streams": run.load.streams,
        "requests": len(run.samples),
        "finished": len(good),
        "errors": dict(Counter(sample.error for sample in bad)),
        "error_examples": {str(s.error): s.error_detail for s in reversed(bad)},
        "wall_s": run.wall_s,
        "prompt_tokens": _sum_known([s.prompt_tokens for s in good]),
        "cached_tokens": _sum_known([s.cached_tokens for s in good]),
        "output_tokens": output_tokens,
        "token_counts": "chunks" if any(s.counted for s in good) else "usage",
        "output_tokens_per_s": output_tokens / run.wall_s if run.wall_s > 0 else 0.0,
        "requests_per_s": len(good) / run.wall_s if run.wall_s > 0 else 0.0,
        "ttft_ms": _spread_ms([s.ttft_s for s in good if s.ttft_s is not None]),
        "inter_token_ms": _spread_ms([gap for s in good for gap in s.gaps_s]),
        "request_ms": _spread_ms([s.end_s - s.start_s for s in good]),
    }


def bench_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    n_errors = sum(report["errors"].values())
    counted = "" if report["token_counts"] == "usage" else " (chunks counted: no usage given)"
    streams = "1 stream" if report["streams"] == 1 else f"{report['streams']} streams"
    lines = [
        f"{report['model']} at {report['url']}, {streams}",
        f"requests         {report['finished']} finished, {n_errors} failed "
        f"in {report['wall_s']:.2f} s",
        f"output           {report['output_tokens_per_s']:.1f} tokens/s, "
        f"{report['output_tokens']} tokens{counted}",
    ]
    if report["prompt_tokens"] is not None:
        reused = report["cached_tokens"]
        tail = "" if reused is None else f", {reused} of them reused"
        lines.append(f"prompts          {report['prompt_tokens']} tokens{tail}")
    for key, name in (
        ("ttft_ms", "TTFT"),
        ("inter_token_ms", "inter-token"),
        ("request_ms", "whole request"),
    ):
        spread = report[key]
        if spread["p50"] is not None:
            lines.append(f"{name:<16} p50 {spread['p50']:.1f} ms, p95 {spread['p95']:.1f} ms")
    for kind, count in report["errors"].items():
        lines.append(f"error            {count} x {kind}: {report['error_examples'][kind]}")
    return lines


def workload_json(run: WorkloadRun) -> dict[str, Any]:
    """A figure's key ends in its unit; `values` has one value for each repetition."""
    return {
        "schema": WORKLOAD_SCHEMA,
        "workload": run.workload,
        "url": run.target.url,
        "model": run.model,
        "seed": run.seed,
        "repeats": run.repeats,
        "requests": len(run.samples),
        "wall_s": wall_s(run.samples),
        "prompt_tokens": sum(sample.prompt_tokens or 0 for sample in run.samples),
        "cached_tokens": _sum_known([sample.cached_tokens for sample in run.samples]),
        "output_tokens": sum(sample.output_tokens for sample in run.samples),
        "longest_prompt_tokens": max(sample.prompt_tokens or 0 for sample in run.samples),
        "figures": {figure.name: _figure_json(figure) for figure in run.figures},
    }


def workload_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    reused = report["cached_tokens"]
    tail = "" if reused is None else f", {reused:,} of them reused"
    lines = [
        f"{report['workload']}: {WORKLOADS[report['workload']].about}",
        f"{report['model']} at {report['url']}, seed {report['seed']}",
        f"{'requests':<28}{report['requests']} in {report['wall_s']:.1f} s, "
        f"the longest prompt {report['longest_prompt_tokens']:,} tokens",
        f"{'prompts':<28}{report['prompt_tokens']:,} tokens{tail}",
    ]
    for name, figure in report["figures"].items():
        unit = "ms" if name.endswith("_ms") else "tokens/s"
        spread = (
            f" ({figure['least']:,.1f} to {figure['most']:,.1f})" if figure["values"][1:] else ""
        )
        lines.append(f"{figure['label']:<28}{figure['median']:,.1f} {unit}{spread}")
    return lines


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "label": figure.label,
        "median": percentile(figure.values, 50),
        "least": min(figure.values),
        "most": max(figure.values),
        "values": list(figure.values),
    }


def _sum_known(values: Sequence[int | None]) -> int | None:
    """None if no server said."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _spread_ms(values_s: Sequence[float]) -> dict[str, float | None]:
    values_ms = [value * 1000 for value in values_s]
    return {f"p{percent}": percentile(values_ms, percent) for percent in (50, 95)}
