"""What a ladder came to: rows for machines, a table and a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdover.bench.ladder import Rung
from holdover.bench.page import Point, bar_chart
from holdover.bench.report import bench_json, warnings
from holdover.bench.techniques import Ladder
from holdover.bench.text import aligned, number
from holdover.html_page import Chart, page_html

SCHEMA = "holdover.ladder/1"
PART = "all turns"
_COLUMNS = (
    ("fit", "conversations that fit"),
    ("at_once", "most at once"),
    ("waste", "of held bytes empty"),
    ("output_tokens_per_s", "output tokens/s"),
    ("times_first", "x the first"),
    ("ttft_p50_ms", "TTFT p50, ms"),
    ("ttft_p95_ms", "TTFT p95, ms"),
    ("cached_share", "of prompts cached"),
    ("kl_mean", "KL to exact"),
)
_SHARES = ("waste", "cached_share")
_CHARTS = (
    ("fit", "conversations that fit", "Conversations of this chat's length that fit at once."),
    ("output_tokens_per_s", "output tokens/s", "Throughput of the chat."),
    ("ttft_p50_ms", "TTFT p50, ms", "Time to the first token, queueing included."),
    ("waste", "share", "Held bytes in which no token lies, mean over the run."),
)


def ladder_json(
    ladder: Ladder, rungs: Sequence[Rung], run: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    measured = [rung.measured for rung in rungs]
    report = bench_json("ladder", ladder.chat, measured, run, seed, None)
    rows = [_row(rung, server) for rung, server in zip(rungs, report["servers"], strict=True)]
    first = rows[0]["output_tokens_per_s"] if rows else None
    for row in rows:
        rate = row["output_tokens_per_s"]
        row["times_first"] = rate / first if first and rate is not None else None
    return report | {
        "schema": SCHEMA,
        "about": f"{ladder.about}; {ladder.chat.about}",
        "settings": asdict(ladder),
        "steps": rows,
    }


def _row(rung: Rung, server: Mapping[str, Any]) -> dict[str, Any]:
    figures = next(part["figures"] for part in server["parts"] if part["name"] == PART)

    def value(name: str) -> float | None:
        figure = figures.get(name)
        return None if figure is None else figure.get("pooled", figure["median"])

    names = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "cached_share")
    return {
        "name": rung.name,
        "command": rung.command,
        "fit": rung.fit,
        "at_once": rung.held.most_running,
        "waste": rung.held.waste,
        "kl_mean": rung.kl_mean,
        "counters": rung.held.counters,
    } | {name: value(name) for name in names}


def ladder_text(report: Mapping[str, Any]) -> str:
    lines = [f"ladder: {report['about']}; seed {report['seed']}", "", *aligned(rows_of(report))]
    for row, server in zip(report["steps"], report["servers"], strict=True):
        lines += [f"warning: {row['name']}: {text}" for text in warnings(server)]
    lines += ["", *(f"{row['name']}: {row['command']}" for row in report["steps"])]
    run = report["run"]
    lines += ["", f"{run['processor']}, {run['cores']} cores, load {run['load_before']:.1f} before"]
    return "\n".join(lines)


def rows_of(report: Mapping[str, Any]) -> list[list[str]]:
    rows = [["", *(label for _, label in _COLUMNS)]]
    for step in report["steps"]:
        rows.append([step["name"], *(_cell(name, step[name]) for name, _ in _COLUMNS)])
    return rows


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _SHARES:
        return f"{value:.0%}"
    if name == "kl_mean":
        return f"{value:.4f}"
    return str(value) if isinstance(value, int) else number(value)


def ladder_page(report: Mapping[str, Any]) -> str:
    charts: list[Chart] = []
    for name, label, caption in _CHARTS:
        bars = {
            step["name"]: Point(step[name]) for step in report["steps"] if step[name] is not None
        }
        charts.append((bar_chart({label: bars}, label), caption))
    text = f"{ladder_text(report)}\n\n$ {report['run']['command']}\n{report['run']['time']}"
    return page_html(
        "The technique ladder", report["about"], charts, text,
        tables=[("Steps", rows_of(report))],
    )  # fmt: skip
