"""The report of `holdover bench` for people: plain tables, a column for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdover.bench.report import Report, warnings
from holdover.bench.spread import PERCENTS

_TIMES = {
    "ttft": "TTFT",
    "per_token": "per token",
    "inter_token": "inter-token",
    "request": "whole request",
}
_RATES = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "prompt_tokens_per_s": "prompt tokens/s",
    "requests_per_s": "requests/s",
    "goodput_requests_per_s": "within SLO, requests/s",
    "good_share": "within SLO, share",
    "cached_share": "cached, share of prompts",
}
# A part's prompts by the time to their first tokens says something where one follows another.
_ALONE = ("prefill",)
_COMPARED = (
    "ttft_p50_ms", "ttft_p95_ms", "per_token_p50_ms", "inter_token_p50_ms", "request_p50_ms",
    "output_tokens_per_s", "total_tokens_per_s", "prompt_tokens_per_s", "goodput_requests_per_s",
)  # fmt: skip
LABELS = {f"{k}_p{p}_ms": f"{v} p{p}, ms" for k, v in _TIMES.items() for p in PERCENTS} | _RATES


def bench_text(report: Report) -> str:
    repeats = report["repeats"]
    times = "1 repetition" if repeats == 1 else f"{repeats} repetitions"
    lines = [f"{report['workload']}: {report['about']}; seed {report['seed']}, {times}"]
    for server in report["servers"]:
        lines += ["", *_server_lines(server), ""]
        lines += aligned(figure_rows(report, server))
    for server in report["servers"][1:]:
        lines += ["", *_ratio_lines(report, server["name"])]
    run = report["run"]
    lines += ["", f"{run['processor']}, {run['cores']} cores, load {run['load_before']:.1f} before"]
    return "\n".join(lines)


def figure_rows(report: Report, server: Mapping[str, Any]) -> list[list[str]]:
    """A row for each time with its percentiles, and one for each rate."""
    parts = server["parts"]
    rows = [["", *(part["name"] for part in parts)]]
    for name, label in _TIMES.items():
        keys = [f"{name}_p{percent}_ms" for percent in PERCENTS]
        if any(keys[0] in part["figures"] for part in parts):
            rows.append([f"{label} p50/95/99, ms", *(_times(part, keys) for part in parts)])
            rows += _spread_rows(parts, keys[0])
    for name, label in _RATES.items():
        if name == "prompt_tokens_per_s" and report["workload"] not in _ALONE:
            continue
        if any(name in part["figures"] for part in parts):
            rows.append([label, *(_value(part, name) for part in parts)])
            rows += _spread_rows(parts, name)
    return rows


def _times(part: Mapping[str, Any], keys: Sequence[str]) -> str:
    figures = part["figures"]
    if keys[0] not in figures:
        return "-"
    return " / ".join(number(figures[key]["pooled"]) for key in keys)


def _value(part: Mapping[str, Any], name: str) -> str:
    figure = part["figures"].get(name)
    return "-" if figure is None else number(figure.get("pooled", figure["median"]))


def _spread_rows(parts: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """Least and most of the repetitions, where there were several."""
    found = [part["figures"].get(name) for part in parts]
    if not any(figure and len(figure["values"]) > 1 for figure in found):
        return []
    cells = [f"{number(f['least'])} - {number(f['most'])}" if f else "-" for f in found]
    return [["  of repetitions" + (", p50" if name.endswith("_ms") else ""), *cells]]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def _server_lines(server: Mapping[str, Any]) -> list[str]:
    totals, again = server["totals"], server["again"]
    version = server["facts"].get("version")
    said = f" ({version})" if version else ""
    failed = totals["requests"] - totals["finished"]
    lines = [
        f"{server['name']}: {server['model']} at {server['url']}{said}",
        f"{totals['requests']:,} requests: {totals['finished']:,} finished, {failed:,} failed, "
        f"{totals['truncated']:,} truncated",
    ]
    counted = "" if totals["token_counts"] == "usage" else " (events counted: no usage given)"
    output = f"{totals['output_tokens']:,} output tokens{counted}"
    if totals["prompt_tokens"] is not None:
        cached = totals["cached_tokens"]
        reused = "" if cached is None else f", {cached:,} of them cached"
        output = f"{totals['prompt_tokens']:,} prompt tokens{reused}; {output}"
    lines.append(output)
    events = totals["output_events"]
    if events and not counted and totals["output_tokens"] > 1.1 * events:
        lines.append(
            f"{totals['output_tokens'] / events:.1f} tokens an event: inter-token times are of "
            "events, times per token are not"
        )
    answers = totals["answers"]
    text = f"answers: {answers.get('fine', 0) + answers.get('loops', 0):,} are text"
    text += f", {answers['loops']:,} of them go round in circles" if "loops" in answers else ""
    if again["asked"]:
        text += f"; asked again alone: {again['equal']} of {again['asked']} the same"
        if again["equal"] < again["asked"]:
            text += f", the others for {again['least_common']:.0%} of their words at least"
    lines.append(text)
    return lines + [f"warning: {text}" for text in warnings(server)]


def number(value: float) -> str:
    """Enough digits to compare by, no more."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio_lines(report: Report, against: str) -> list[str]:
    ours = report["servers"][0]["name"]
    ratios = {
        (ratio["part"], ratio["figure"]): ratio
        for ratio in report["ratios"]
        if ratio["against"] == against
    }
    parts = list(dict.fromkeys(part for part, _ in ratios))
    rows = [[f"{ours} against {against}", *parts]]
    for name in _COMPARED:
        found = [ratios.get((part, name)) for part in parts]
        if any(found) and (name != "prompt_tokens_per_s" or report["workload"] in _ALONE):
            rows.append([LABELS[name].removesuffix(", ms"), *map(_times_better, found)])
    return [*aligned(rows), f"1.20x: {ours} is 1.20 times as fast; least and most of repetitions"]


def _times_better(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return "-"
    spread = f" ({ratio['least']:.2f}-{ratio['most']:.2f})" if len(ratio["values"]) > 1 else ""
    return f"{ratio['median']:.2f}x{spread}"
