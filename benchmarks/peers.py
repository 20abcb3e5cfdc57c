"""Holdover beside other engines: the same workloads from the same client, in one run.

    python benchmarks/peers.py benchmarks/peers.toml [--rounds 2] [--engines NAME,...]
        [--workloads single,prefill,...] [--repeats N] [--seed 0] [--json FILE]

The description says how each engine is started (benchmarks/peers.toml is one, with how to install
them). One engine is loaded at a time; a round starts each in turn and runs all workloads, so what
disturbs the machine for minutes disturbs all alike. The table has the median of all repetitions of
all rounds and their least and most; our columns also how many times better than the best peer they
are. A figure means something on an idle machine only: the last lines say how idle it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdover.bench.facts import run_facts
from holdover.bench.load import Target
from holdover.bench.measure import Settings, measure, named_workload
from holdover.bench.report import bench_json, faults, headline_figures
from holdover.bench.server_process import Server, busy_s, serving
from holdover.bench.session import run_loop
from holdover.bench.workloads import WORKLOADS
from holdover.errors import ConfigError, HoldoverError


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine is started and asked; a line of the description each."""

    name: str
    command: str
    ready: str = "http://127.0.0.1:{port}/health"
    model: str | None = None
    ours: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    leave_out: Sequence[str] = ()  # fields that it refuses
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload on an engine in one round: its figures, or why there are none."""

    engine: str
    workload: str
    round: int
    figures: dict[str, tuple[float, ...]]
    others_cores: float  # what everything but server and client used meanwhile
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sitting:
    """An engine in one round, as a process."""

    engine: str
    round: int
    load_before: float
    ready_s: float
    peak_bytes: int


def read_engines(path: Path, wanted: Sequence[str]) -> list[Engine]:
    """Raises ConfigError with the file and the entry."""
    try:
        entries = tomllib.loads(path.read_text())["engine"]
        engines = [Engine(**entry) for entry in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(str(path), f"no description of engines: {error}") from error
    names = [engine.name for engine in engines]
    for name in wanted:
        if name not in names:
            raise ConfigError("--engines", f"{name!r} is none of {', '.join(names)}")
    return [engine for engine in engines if not wanted or engine.name in wanted]


def sit(
    engine: Engine, number: int, workloads: Sequence[str], asked: argparse.Namespace
) -> tuple[Sitting | None, list[Measured]]:
    load_before = os.getloadavg()[0]
    done: list[Measured] = []
    try:
        with serving(engine.command, engine.ready, engine.environment, asked.start_s) as server:
            for workload in workloads:
                done.append(_measure_one(engine, server, number, workload, asked))
                _say(done[-1])
            sitting = Sitting(engine.name, number, load_before, server.ready_s, server.peak_bytes())
    except HoldoverError as error:
        print(f"round {number}  {engine.name}: {error}", file=sys.stderr, flush=True)
        return None, [Measured(engine.name, w, number, {}, 0.0, str(error)) for w in workloads]
    return sitting, done


def _measure_one(
    engine: Engine, server: Server, number: int, workload: str, asked: argparse.Namespace
) -> Measured:
    fields = {**engine.extra_body, **dict.fromkeys(engine.leave_out)}
    target = Target(server.url, engine.model, timeout_s=asked.timeout_s, extra_body=fields)
    start_s, before_s = time.monotonic(), busy_s() - server.cpu_s() - time.process_time()
    figures: dict[str, tuple[float, ...]] = {}
    error = ""
    settings, chosen = Settings(asked.seed, asked.repeats), named_workload(workload)
    try:
        [run] = run_loop(measure([target], workload, chosen, settings))
        report = bench_json(workload, chosen, [run], {}, asked.seed, None)
        error = "; ".join(faults(report["servers"][0]))
        figures = {} if error else headline_figures(chosen, run)
    except HoldoverError as failure:
        error = str(failure)
    used_s = busy_s() - server.cpu_s() - time.process_time() - before_s
    others_cores = max(0.0, used_s / (time.monotonic() - start_s))
    return Measured(engine.name, workload, number, figures, others_cores, error)


def _say(measured: Measured) -> None:
    shown = ", ".join(f"{k} {_median(v):,.1f}" for k, v in measured.figures.items())
    print(
        f"round {measured.round}  {measured.engine:<24}{measured.workload:<13}"
        f"{shown or measured.error} (others {measured.others_cores:.2f} cores)",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def table(engines: Sequence[Engine], done: Sequence[Measured], sat: Sequence[Sitting]) -> list[str]:
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for measured in done:
        for name, found in measured.figures.items():
            row = values.setdefault((measured.workload, name), {})
            row.setdefault(measured.engine, []).extend(found)
    rows = [["", *(engine.name for engine in engines)]]
    for (workload, name), by_engine in values.items():
        cells = [_cell(engine, name, engines, by_engine) for engine in engines]
        rows.append([f"{workload}: {name}", *cells])
    for title, show in (
        ("peak memory, MiB", lambda s: s.peak_bytes / 2**20),
        ("ready after, s", lambda s: s.ready_s),
        ("load average before", lambda s: s.load_before),
    ):
        by_name = [[show(s) for s in sat if s.engine == engine.name] for engine in engines]
        rows.append([title, *(_spread(found) for found in by_name)])
    others = [[m.others_cores for m in done if m.engine == e.name and not m.error] for e in engines]
    rows.append(["cores used by others", *(_spread(found, 2) for found in others)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cell(
    engine: Engine, figure: str, engines: Sequence[Engine], values: Mapping[str, list[float]]
) -> str:
    if engine.name not in values:
        return "-"
    text = _spread(values[engine.name])
    peers = [_median(values[e.name]) for e in engines if not e.ours and e.name in values]
    if engine.ours and peers:
        mine = _median(values[engine.name])
        times = min(peers) / mine if figure.endswith("_ms") else mine / max(peers)
        text += f" {times:.2f}x"
    return text


def _spread(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return "-"
    least, most = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    middle = f"{_median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({least}-{most})"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("description", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engines", type=_listed, default=[])
    parser.add_argument("--workloads", type=_listed, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start-s", type=float, default=300.0, help="longest start of a server")
    parser.add_argument(
        "--timeout-s", type=float, default=900.0, help="longest silence of a stream"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value of every round")
    asked = parser.parse_args()
    engines = read_engines(asked.description, asked.engines)
    for name in asked.workloads:  # before an engine is started for it
        named_workload(name)
    sat: list[Sitting] = []
    done: list[Measured] = []
    facts = run_facts(sys.argv[1:], "benchmarks/peers.py")
    for number in range(1, asked.rounds + 1):
        for engine in engines:
            sitting, measured = sit(engine, number, asked.workloads, asked)
            sat += [sitting] if sitting else []
            done += measured
            if asked.json:  # after each engine, so that a run cut short leaves what it has
                record = {
                    "run": facts, "sittings": list(map(asdict, sat)),
                    "measured": list(map(asdict, done)),
                }  # fmt: skip
                asked.json.write_text(json.dumps(record, indent=1))
    print("\n".join(table(engines, done, sat)))
    for failed in done:
        if failed.error:
            why = failed.error.splitlines()[0]  # the rest was said when it happened
            print(f"round {failed.round}, {failed.engine}, {failed.workload}: {why}")
    print("figures: median (least-most); 1.20x: 1.20 times better than the best peer")


if __name__ == "__main__":
    try:
        main()
    except HoldoverError as error:
        sys.exit(f"peers: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
