"""Charts of measured or simulated figures, for one self-contained page (`html_page`).

Lines over a number (`line_chart`) and bars for each of several names (`bar_chart`), both with a
spread from least to most where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdover.html_page import new_figure, svg_text

# Apart for colour-blind readers too (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "os^Dv*x"


@dataclass(frozen=True, slots=True)
class Point:
    """A value, and the least and most of its repetitions where there were several."""

    y: float
    least: float | None = None
    most: float | None = None

    @property
    def spread(self) -> tuple[float, float]:
        """How far below and above."""
        least = self.y if self.least is None else self.least
        most = self.y if self.most is None else self.most
        return max(0.0, self.y - least), max(0.0, most - self.y)


Lines = Mapping[str, Sequence[tuple[float, Point]]]
"""Name of a line, and its (x, point)s."""
Bars = Mapping[str, Mapping[str, Point]]
"""Name of a colour, and its point for each place; a place may be missing."""


def line_chart(
    lines: Lines, x_label: str, y_label: str, log_x: bool = False, log_y: bool = False
) -> str:
    """SVG; `log_x` puts ticks at the values themselves."""
    figure, axes = new_figure()
    for number, (name, points) in enumerate(lines.items()):
        points = sorted(points, key=lambda pair: pair[0])
        axes.errorbar(
            [x for x, _ in points], [point.y for _, point in points],
            yerr=_errors([point for _, point in points]), label=name, capsize=3,
            color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
        )  # fmt: skip
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.xaxis.set_major_formatter(_number)
    if log_x:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xticks(ticks, [_number(x) for x in ticks])
        axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(_number)
    if len(lines) > 1:
        figure.legend(loc="outside upper center", ncols=min(4, len(lines)), frameon=False)
    return svg_text(figure, salt=f"{x_label} {y_label}")


def bar_chart(bars: Bars, y_label: str, log_y: bool = False) -> str:
    """SVG: for each place a bar of each colour that has one there."""
    figure, axes = new_figure()
    places = list(dict.fromkeys(place for found in bars.values() for place in found))
    width = 0.8 / max(1, len(bars))
    for number, (name, found) in enumerate(bars.items()):
        here = [(i, found[place]) for i, place in enumerate(places) if place in found]
        drawn = axes.bar(
            [i + (number - (len(bars) - 1) / 2) * width for i, _ in here],
            [point.y for _, point in here], width * 0.92,
            yerr=_errors([point for _, point in here]), label=name, capsize=3,
            color=COLOURS[number % len(COLOURS)],
        )  # fmt: skip
        axes.bar_label(drawn, [_number(point.y) for _, point in here], padding=2, fontsize=8)
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel(y_label)
    if log_y:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_number)
    if len(bars) > 1:
        figure.legend(loc="outside upper center", ncols=min(4, len(bars)), frameon=False)
    return svg_text(figure, salt=f"{y_label} {' '.join(places)}")


def _errors(points: Sequence[Point]) -> tuple[list[float], list[float]] | None:
    spreads = [point.spread for point in points]
    if not any(low or high for low, high in spreads):
        return None
    return [low for low, _ in spreads], [high for _, high in spreads]


def _number(value: float, _place: Any = None) -> str:
    """Three digits that say something: 1,240, 31.7, 0.052."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"
