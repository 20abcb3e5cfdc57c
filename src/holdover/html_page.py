"""One HTML file that needs nothing else: its frame, and charts as inline SVG by matplotlib.

matplotlib draws on a server without a screen, is maintained, and its SVG needs neither scripts nor
a network. It is imported by the first chart and by nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdover.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
pre { font: 13px/1.45 ui-monospace, monospace; background: #f5f5f3; padding: 1rem;
      overflow-x: auto }
figure { margin: 2rem 0 } figure svg { width: 100%; height: auto } figcaption { color: #555 }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; display: block;
        overflow-x: auto }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #e2e2de }
th:first-child, td:first-child { text-align: left } .warning { color: #9b2c2c }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
<p>{{ summary }}</p>
{% for text in warnings %}<p class="warning">{{ text }}</p>
{% endfor %}{% for svg, caption in charts %}
<figure>{{ svg | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}{% for title, rows in tables %}<h2>{{ title }}</h2>
<table>
{% for row in rows %}{% set head = loop.first %}<tr>
{% for cell in row %}{% set tag = "th" if head or loop.first else "td" %}<{{ tag }}>{{ cell
}}</{{ tag }}>{% endfor %}</tr>
{% endfor %}</table>
{% endfor %}<h2>In full</h2>
<pre>{{ text }}</pre>
</body>
</html>
"""  # fmt: skip

Chart = tuple[str, str]
"""SVG, and the sentence under it."""
Table = tuple[str, Sequence[Sequence[str]]]
"""Heading, and rows of cells, of which the first names the columns."""


def page_html(
    title: str,
    summary: str,
    charts: Sequence[Chart],
    text: str,
    heading: str | None = None,
    tables: Sequence[Table] = (),
    warnings: Sequence[str] = (),
) -> str:
    """`text` is the whole report as a terminal shows it."""
    from jinja2 import Environment

    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            title=title, heading=heading or title, summary=summary, charts=charts, text=text,
            tables=tables, warnings=warnings,
        )
    )  # fmt: skip


def write_html(path: Path, text: str) -> None:
    """Raises ConfigError where the file cannot be written."""
    write_text(path, text, "--html")


def new_figure() -> tuple[Figure, Any]:
    """A figure of the page's width, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg_text(figure: Figure, salt: str) -> str:
    """The figure for inside a page: text stays text, and equal figures are equal files.

    `salt` keeps the ids of one page's charts apart.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    _, start, rest = out.getvalue().partition("<svg")  # without XML's own heading
    return start + rest
