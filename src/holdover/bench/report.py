"""What was measured, for machines: docs/benchmarks.md names the keys. `text` and `charts` read it.

A figure has the value of all requests of all repetitions together (`pooled`: percentiles are of as
many as there are), and one value for each repetition with their median, least and most. A ratio is
how many times better the first server is in one repetition than another in the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from holdover.bench.client import Sample
from holdover.bench.measure import Measured
from holdover.bench.stats import Slo, counts, less_is_better, stats
from holdover.bench.workload import Part, Workload

SCHEMA = "holdover.bench/2"
Report = dict[str, Any]


def bench_json(
    name: str,
    workload: Workload,
    measured: Sequence[Measured],
    run: Mapping[str, Any],
    seed: int,
    slo: Slo | None,
) -> Report:
    servers = [_server(each, slo) for each in measured]
    return {
        "schema": SCHEMA,
        "workload": name,
        "about": workload.about,
        "settings": settings_of(workload),
        "headline": list(workload.headline),
        "x_label": workload.x_label,
        "seed": seed,
        "repeats": max((len(each.repetitions) for each in measured), default=0),
        "slo": None if slo is None else asdict(slo),
        "run": dict(run),
        "servers": servers,
        "ratios": [ratio for other in servers[1:] for ratio in _ratios(servers[0], other)],
    }


def settings_of(workload: Workload) -> dict[str, Any]:
    return {item.name: getattr(workload, item.name) for item in fields(workload)}  # type: ignore[arg-type]


def headline_figures(workload: Workload, measured: Measured) -> dict[str, tuple[float, ...]]:
    """ "PART: FIGURE" to its value in each repetition, for tables of several engines."""
    found = {}
    for part in _parts(measured, None):
        for figure in workload.headline:
            if figure in part["figures"]:
                found[f"{part['name']}: {figure}"] = tuple(part["figures"][figure]["values"])
    return found


def faults(server: Mapping[str, Any]) -> list[str]:
    """Why a server's figures mean something else than they say, in sentences."""
    found = list(server["problems"])
    totals = server["totals"]
    for kind, number in totals["errors"].items():
        example = totals["error_examples"][kind]
        hint = "; give --no-ignore-eos" if "ignore_eos" in example else ""
        found.append(f"{number} x {kind}: {example}{hint}")
    if totals["truncated"]:
        how = "were cut off at --output-tokens"
        if server["exact_answers"]:
            how = (
                "ended early; if it has another field than ignore_eos for answers of full length, "
                "give it with --extra-body"
            )
        found.append(f"{totals['truncated']} answers {how}")
    found += [
        f"{totals['answers'][kind]} answers are no text: {kind.replace('_', ' ')}"
        for kind in ("empty", "broken", "one_character")
        if kind in totals["answers"]
    ]
    return found


def warnings(server: Mapping[str, Any]) -> list[str]:
    """Faults, and what a person should look at before they believe the figures."""
    again = server["again"]
    if not again["unlike"]:
        return faults(server)
    text = f"{again['unlike']} of {again['asked']} answers were others when asked for again, alone"
    return [*faults(server), text]


def _server(measured: Measured, slo: Slo | None) -> dict[str, Any]:
    exact = measured.target.ignore_eos
    return {
        "name": measured.target.name,
        "url": measured.target.url,
        "model": measured.model,
        "facts": measured.facts,
        "extra_body": dict(measured.target.extra_body),
        "exact_answers": exact,
        "client_cores": max((r.client_cores for r in measured.repetitions), default=0.0),
        "problems": measured.problems,
        "totals": counts(measured.samples, exact),
        "again": asdict(measured.again),
        "parts": _parts(measured, slo),
    }


def _parts(measured: Measured, slo: Slo | None) -> list[dict[str, Any]]:
    """Parts of one name in all repetitions are one part."""
    rows: dict[str, list[Part]] = {}
    for repetition in measured.repetitions:
        for part in repetition.parts:
            rows.setdefault(part.name, []).append(part)
    return [_part(parts, measured, slo) for parts in rows.values()]


def _part(parts: Sequence[Part], measured: Measured, slo: Slo | None) -> dict[str, Any]:
    samples = [sample for part in parts for sample in part.samples]
    each = [stats(part.samples, slo) for part in parts]
    names = dict.fromkeys(name for found in each for name in found)
    pooled = stats(samples, slo)
    return {
        "name": parts[0].name,
        "x": parts[0].x,
        "line": parts[0].line,
        "totals": counts(samples, measured.target.ignore_eos),
        "figures": {
            name: _spread([found[name] for found in each if name in found])
            # A rate over all repetitions would count the time of the others between them.
            | ({} if "_per_s" in name else {"pooled": pooled[name]})
            for name in names
        },
        "requests": [
            _request(sample, number)
            for number, part in enumerate(parts, 1)
            for sample in part.samples
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "values": list(values),
    }


def _request(sample: Sample, repetition: int) -> dict[str, Any]:
    return {
        "repetition": repetition,
        "start_s": sample.start_s,
        "ttft_ms": _ms(sample.ttft_s),
        "per_token_ms": _ms(sample.per_token_s),
        "request_ms": _ms(sample.total_s),
        "prompt_tokens": sample.prompt_tokens,
        "cached_tokens": sample.cached_tokens,
        "output_tokens": sample.output_tokens,
        "finish_reason": sample.finish_reason,
        "error": sample.error,
    }


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else 1000 * value_s


def _ratios(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    others = {part["name"]: part for part in other["parts"]}
    found = []
    for part in first["parts"]:
        beside = others.get(part["name"], {"figures": {}})["figures"]
        for name, figure in part["figures"].items():
            if name not in beside or name.endswith("_share"):
                continue
            pairs = zip(figure["values"], beside[name]["values"], strict=False)
            values = [
                b / a if less_is_better(name) else a / b
                for a, b in pairs
                if (a if less_is_better(name) else b) > 0
            ]
            if values:
                found.append(
                    {"server": first["name"], "against": other["name"], "part": part["name"],
                     "figure": name, **_spread(values)}
                )  # fmt: skip
    return found
