"""Measured figures reach both plans, for the model they were measured with and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdover.codecs.base import kv_choice
from holdover.plan import measured
from holdover.plan.measured import KNOWN_BY, marks_of, measured_quality
from holdover.weights import open_header

RECORDS = json.loads(Path(measured.__file__).with_name("measured.json").read_text())["records"]


def plan(*arguments: str) -> str:
    command = [sys.executable, "-m", "holdover", "plan", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=[record["model"] for record in RECORDS])
def metadata(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(open_header(request.param).metadata)


def test_what_ships_is_sound() -> None:
    assert "smollm2" in {record["model"] for record in RECORDS}
    for record in RECORDS:
        assert {"int8", "int4"} <= set(record["figures"])
        for kv, figures in record["figures"].items():
            assert kv_choice(kv).name == kv
            assert 0 < figures["kl_mean"] < figures["kl_p99"]
            assert 0.5 < figures["same_top"] <= 1
        assert record["figures"]["int8"]["kl_mean"] < record["figures"]["int4"]["kl_mean"]


def test_a_model_is_known_whatever_its_weights_are_stored_in(metadata: dict[str, Any]) -> None:
    found = measured_quality(metadata, "int4")
    assert found is not None
    assert measured_quality(metadata | {"general.file_type": 1}, "int4") == found
    assert measured_quality(metadata, "int4,0=bf16") is None
    assert measured_quality({}, "int4") is None
    for name in marks_of(metadata):
        other = 7 if name not in KNOWN_BY else "another"
        assert measured_quality(metadata | {name: other}, "int4") is None, name


def test_both_plans_show_the_figures() -> None:
    kl = next(r for r in RECORDS if r["model"] == "smollm2")["figures"]["int4"]["kl_mean"]
    line = f"measured: KL {kl:.2g} to an exact cache, same top token "
    assert line in plan("smollm2", "--kv", "int4", "--kv-memory", "64MiB")
    assert line in plan("smollm2", "--kv", "int4", "--context", "4000")
    assert json.loads(plan("smollm2", "--kv", "int4", "--json"))["quality"]["kl_mean"] == kl
    assert "measured:" not in plan("smollm2", "--kv-memory", "64MiB")


def test_what_nobody_measured_is_said_with_the_command_that_does() -> None:
    found = plan("smollm2", "--kv", "int4,3=fp16", "--kv-memory", "64MiB")
    assert "holdover quality --kv int4,3=fp16" in found
    assert "quality" not in plan("llama-3-8b", "--kv", "int4")
