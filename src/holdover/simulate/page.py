"""A simulation as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdover.bench.page import Lines, Point, bar_chart, line_chart
from holdover.bench.spread import PERCENTS
from holdover.html_page import Chart, page_html, write_html
from holdover.simulate.report import Report, simulate_text, summary
from holdover.units import GIB


def write_page(path: Path, report: Report) -> None:
    """Raises ConfigError where the file cannot be written."""
    write_html(path, simulate_page(report))


def simulate_page(report: Report) -> str:
    charts = _of_one(report) if len(report["sizes"]) == 1 else _of_several(report)
    title = f"{report['model']['name']}: {report['trace']['name']} simulated"
    return page_html(title, summary(report), charts, simulate_text(report))


def _of_several(report: Report) -> list[Chart]:
    tiers = list(report["settings"]["tiers"])
    rates: Lines = {
        "all": _line(report, lambda found: 100 * found["hit_rate"]),
        **({"arena": _line(report, lambda found: _share(found, found["arena"]))} if tiers else {}),
        **{tier: _line(report, partial(_tier_share, tier)) for tier in tiers},
    }
    times: Lines = {
        f"p{percent}": _line(report, partial(_ttft_s, f"p{percent}")) for percent in PERCENTS
    }
    x = "KV arena, GiB"
    return [
        (
            line_chart(rates, x, "prompt tokens reused, %", log_x=True),
            "What part of all prompt tokens was reused, by where it lay.",
        ),
        (
            line_chart(times, x, "time to first token, s", log_x=True, log_y=True),
            "Estimated time to the first token, queueing included.",
        ),
        (
            line_chart(
                {"held": _line(report, lambda found: found["held_conversations"])},
                x, "conversations held at the end", log_x=True,
            ),
            "Conversations whose last prompt lies whole in the arena when the trace has ended.",
        ),
    ]  # fmt: skip


def _of_one(report: Report) -> list[Chart]:
    [found] = report["sizes"]
    hits = {"arena": found["arena"], **found["tiers"]}
    rates = {name: Point(_share(found, one)) for name, one in hits.items()}
    names = {"TTFT": "ttft_s", "queued": "queue_s"}
    times = {
        name: {f"p{p}": Point(found[key][f"p{p}"] or 0.0) for p in PERCENTS}
        for name, key in names.items()
    }
    return [
        (
            bar_chart({"reused": rates}, "prompt tokens reused, %"),
            "What part of all prompt tokens was reused, by where it lay.",
        ),
        (
            bar_chart(times, "s"),
            "Estimated time to the first token, and the part of it spent in the queue.",
        ),
    ]


def _line(report: Report, value: Callable[[Report], float]) -> list[tuple[float, Point]]:
    return [(found["arena_bytes"] / GIB, Point(value(found))) for found in report["sizes"]]


def _share(found: Report, one: Report) -> float:
    return float(100 * one["hit_tokens"] / (found["prompt_tokens"] or 1))


def _tier_share(tier: str, found: Report) -> float:
    return _share(found, found["tiers"][tier])


def _ttft_s(percentile: str, found: Report) -> float:
    return float(found["ttft_s"][percentile] or 0.0)
