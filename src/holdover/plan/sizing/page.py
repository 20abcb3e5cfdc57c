"""A sizing plan as one HTML page that needs nothing else: tables, and charts as inline SVG.

Every number comes from `report`: its JSON, and `curves_json` for the charts.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError
from holdover.plan.sizing.tables import plan_text

Report = dict[str, Any]
Curves = Mapping[str, list[dict[str, int]]]
GIB = 2**30

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.model }}: KV cache plan</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
pre { font: 13px/1.45 ui-monospace, monospace; background: #f5f5f3; padding: 1rem;
      overflow-x: auto }
figure { margin: 2rem 0 } figure svg { width: 100%; height: auto } figcaption { color: #555 }
</style>
</head>
<body>
<h1>{{ report.model }}</h1>
<p>{{ summary }}</p>
{% for svg, caption in charts %}
<figure>{{ svg | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}<h2>In full</h2>
<pre>{{ text }}</pre>
</body>
</html>
"""  # fmt: skip


def write_page(path: Path, report: Report, curves: Curves) -> None:
    """Write the page; raises ConfigError where the file cannot be written."""
    text = page_html(report, curves)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", f"{path} cannot be written: {error.strerror}") from error


def page_html(report: Report, curves: Curves) -> str:
    from jinja2 import Environment

    template = Environment(autoescape=True).from_string(_PAGE)
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
    return template.render(
        report=report, charts=charts, text=plan_text(report), summary=_summary(report)
    )


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
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    points = curves[axis]
    x = [point[axis] for point in points]
    weights = (report["weights_bytes"] or 0) / GIB
    cache = [point["cache_bytes"] / GIB for point in points]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(
        x, [weights] * len(x), cache, labels=("weights", "cache"), colors=("#9aa5b1", "#2b6cb0")
    )
    _limit(axes, report, max(weights + c for c in cache))
    axes.set(xlabel=label, ylabel="GiB over all devices", xlim=(x[0], x[-1]), ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    out = io.StringIO()
    # Text as text, and the same file every time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": f"{report['model']} {axis}"}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    _, start, rest = out.getvalue().partition("<svg")  # without XML's own heading
    return start + rest


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
