"""A sizing plan as one HTML page that needs nothing else: tables, and charts as inline SVG.

Every number comes from `report`: its JSON, and `curves_json` for the charts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdover.html_page import new_figure, page_html, svg_text, write_html
from holdover.plan.sizing.tables import plan_text
from holdover.units import GIB

Report = dict[str, Any]
Curves = Mapping[str, list[dict[str, int]]]


def write_page(path: Path, report: Report, curves: Curves) -> None:
    """Write the page; raises ConfigError where the file cannot be written."""
    write_html(path, plan_page(report, curves))


def plan_page(report: Report, curves: Curves) -> str:
    tokens, users = report["conversation"]["tokens"], report["users"]
    who = "1 user" if users == 1 else f"{users:,} users"
    charts = [
        (
            _chart(report, curves, "tokens", f"context length of {who}, tokens"),
            f"Weights and cache over context length, for {who}.",
        ),
        (
            _chart(report, curves, "users", f"users of {tokens:,} tokens"),
            f"Weights and cache over users, each with {tokens:,} tokens.",
        ),
    ]
    return page_html(
        f"{report['model']}: KV cache plan", _summary(report), charts, plan_text(report),
        heading=report["model"],
    )  # fmt: skip


def _summary(report: Report) -> str:
    growing = report["bytes_per_token"]
    text = f"{report['architecture']}, KV {report['kv']}: {growing:,} bytes per token"
    if "fits" not in report:
        return text
    verdict = "fits" if report["fits"] else "does not fit"
    tokens, users = report["conversation"]["tokens"], report["users"]
    return f"{text}. {users:,} x {tokens:,} tokens {verdict} on {report['device']['name']}."


def _chart(report: Report, curves: Curves, axis: str, label: str) -> str:
    """Cache stacked on weights over `axis`, as SVG; a line where the device ends."""
    points = curves[axis]
    x = [point[axis] for point in points]
    weights = (report["weights_bytes"] or 0) / GIB
    cache = [point["cache_bytes"] / GIB for point in points]
    figure, axes = new_figure()
    axes.stackplot(
        x, [weights] * len(x), cache, labels=("weights", "cache"), colors=("#9aa5b1", "#2b6cb0")
    )
    _limit(axes, report, max(weights + c for c in cache))
    axes.set(xlabel=label, ylabel="GiB over all devices", xlim=(x[0], x[-1]), ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return svg_text(figure, salt=f"{report['model']} {axis}")


def _limit(axes: Any, report: Report, highest_gib: float) -> None:
    if "device" not in report:
        return
    device = report["device"]
    total = device["count"] * (device["memory_bytes"] - device["headroom_bytes"]) / GIB
    if total < 3 * highest_gib:
        axes.axhline(total, color="#c53030", linestyle="--", linewidth=1.2)
        name = f"{device['count']} x {device['name']}" if device["count"] > 1 else device["name"]
        axes.annotate(
            f"{name} less headroom", (0.01, total), xycoords=("axes fraction", "data"),
            ha="left", va="bottom", color="#c53030",
        )  # fmt: skip
