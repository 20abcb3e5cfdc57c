"""A report of `holdover bench` as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.bench.page import Point, bar_chart, line_chart
from holdover.bench.report import Report, warnings
from holdover.bench.spread import PERCENTS
from holdover.bench.text import LABELS, bench_text, figure_rows
from holdover.html_page import Chart, page_html


def bench_page(report: Report) -> str:
    names = " and ".join(server["name"] for server in report["servers"])
    return page_html(
        f"{report['workload']}: {names}",
        report["about"],
        [*_over_x(report), *_percentiles(report)],
        f"{bench_text(report)}\n\n$ {report['run']['command']}\n{report['run']['time']}",
        tables=[(s["name"], figure_rows(report, s)) for s in report["servers"]],
        warnings=[f"{s['name']}: {text}" for s in report["servers"] for text in warnings(s)],
    )


def _over_x(report: Report) -> list[Chart]:
    """Each headline figure over what the workload sweeps."""
    charts = []
    for name in report["headline"]:
        lines: dict[str, list[tuple[float, Point]]] = {}
        for server in report["servers"]:
            for part in server["parts"]:
                if part["x"] is not None and name in part["figures"]:
                    line = f"{server['name']} {part['line']}".strip()
                    lines.setdefault(line, []).append((part["x"], _point(part["figures"][name])))
        if any(len(points) > 1 for points in lines.values()):
            xs = [x for points in lines.values() for x, _ in points]
            svg = line_chart(lines, report["x_label"], LABELS[name], max(xs) >= 4 * min(xs))
            charts.append((svg, f"{LABELS[name]}, by {report['x_label']}."))
    return charts


def _percentiles(report: Report) -> list[Chart]:
    """Of the parts that no axis has, or else of the first one."""
    charts = []
    shown = [part["name"] for part in report["servers"][0]["parts"] if part["x"] is None]
    for part_name in shown or [report["servers"][0]["parts"][0]["name"]]:
        for name, label in (("ttft", "time to the first token"), ("per_token", "time per token")):
            bars: dict[str, dict[str, Point]] = {}
            for server in report["servers"]:
                found = [part for part in server["parts"] if part["name"] == part_name]
                for percent in PERCENTS:
                    key = f"{name}_p{percent}_ms"
                    if found and key in found[0]["figures"]:
                        point = Point(found[0]["figures"][key]["pooled"])
                        bars.setdefault(server["name"], {})[f"p{percent}"] = point
            if bars:
                charts.append((bar_chart(bars, f"{label}, ms"), f"{part_name}: {label}."))
    return charts


def _point(figure: Mapping[str, Any]) -> Point:
    return Point(figure["median"], figure["least"], figure["most"])
