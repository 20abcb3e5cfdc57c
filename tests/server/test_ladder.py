"""The technique ladder on a small model: each step a server of its own, held to what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdover.bench.ladder import Held, conversations_that_fit, measure_ladder, serve_command
from holdover.bench.measure import Settings
from holdover.bench.techniques import Ladder
from holdover.cli.app import build_app
from holdover.config import Config
from holdover.engine.planning import plan_serving
from holdover.errors import ConfigError

METRICS = """# HELP holdover_kv_held_bytes x
holdover_kv_held_bytes 1000.0
holdover_kv_logical_bytes {logical}
holdover_sequences{{state="running"}} {running}
holdover_sequences{{state="waiting"}} 9.0
"""


def test_each_step_has_all_that_those_before_it_added() -> None:
    steps = dict(Ladder().steps("/a folder"))
    assert list(steps)[:5] == ["contiguous", "paged", "+ prefix reuse", "+ int8", "+ int4"]
    assert list(steps)[-1] == "+ disk tier"
    last = steps["+ disk tier"]
    assert (last["kv"], last["reservation"]) == ("int4", "shared")
    assert all(Config(**asked) for asked in steps.values())
    command = serve_command(last, ["holdover"])
    assert "'disk:/a folder:2GiB'" in command
    assert "--reservation shared --kv int4" in command


def test_what_fits_is_what_the_plan_says() -> None:
    steps = dict(Ladder(kv_memory="64MiB", max_context=2048).steps("/x"))
    fit = {}
    for name in ("contiguous", "paged", "+ int4"):
        planned = plan_serving(Config(**steps[name]))
        fit[name] = conversations_that_fit(planned, 512)
        if name == "contiguous":  # floor(arena / max length), in bytes
            block = planned.layout.blocks[0]
            assert fit[name] == planned.plan.arena_bytes // (2048 // 16 * block.nbytes)
    assert fit["contiguous"] == 1
    assert fit["paged"] == 5
    assert fit["+ int4"] > 3 * fit["paged"]


def test_waste_is_held_bytes_without_a_token() -> None:
    held = Held()
    for logical, running in ((250.0, 2), (750.0, 5), (3000.0, 4)):
        held.take(METRICS.format(logical=logical, running=float(running)))
    assert held.most_running == 5
    assert held.waste == pytest.approx((0.75 + 0.25 + 0) / 3)


def test_numbers_that_cannot_work_are_said_before_a_server_starts() -> None:
    with pytest.raises(ConfigError, match="--users: 0"):
        Ladder(users=0)
    with pytest.raises(ConfigError, match="--kv-memory: 'lots'"):
        measure_ladder(Ladder(kv_memory="lots"), Settings())


def test_a_later_step_that_cannot_serve_is_said_before_the_first_server_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdover.bench.ladder.serving", lambda *_: pytest.fail("started"))
    with pytest.raises(ConfigError, match="--window"):
        measure_ladder(Ladder(window=9000), Settings())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # seven servers, each with a chat
def test_the_whole_ladder(tmp_path: Path) -> None:
    """Paging gives at least twice the throughput of contiguous reservation."""
    kept, page = tmp_path / "ladder.json", tmp_path / "ladder.html"
    asked = ["bench", "ladder", "--json-file", str(kept), "--html", str(page)]
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 0, done.output
    steps = {step["name"]: step for step in json.loads(kept.read_text())["steps"]}
    assert steps["contiguous"]["at_once"] == steps["contiguous"]["fit"] == 1
    assert steps["contiguous"]["waste"] > 0.5 > 0.1 > steps["paged"]["waste"]
    assert steps["paged"]["times_first"] >= 2
    assert steps["contiguous"]["cached_share"] == steps["paged"]["cached_share"] == 0
    assert steps["+ prefix reuse"]["cached_share"] > 0.3
    fits = [steps[name]["fit"] for name in ("contiguous", "paged", "+ int8", "+ int4")]
    assert fits == sorted(set(fits))
    assert page.read_text().count("<svg") == 4
    assert str(tmp_path) not in done.stdout
