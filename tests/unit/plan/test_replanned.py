"""What the planner proposes, typed as it says: every change fits, and every maximum is one."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from holdover.cli.planning import quick_plan

GOALS = [
    ("llama-3-8b", "rtx 4090", "users=50,context=4000", ()),
    ("llama-3-70b", "h100", "users=40,context=8000", ("--gpus", "2")),
    ("llama-4-scout", "h200", "users=500,context=60000", ("--gpus", "4")),
    ("gemma-3-27b", "a100 80gb", "users=60,context=32768", ()),
    ("mistral-7b-v0.1", "rtx 4090", "users=30,context=8000", ()),
    ("deepseek-v3.2", "h200", "users=400,context=100000", ("--gpus", "8")),
    ("deepseek-v4-pro", "b200", "users=3000,context=100000", ("--gpus", "16")),
    ("qwen3-next-80b-a3b", "h200", "users=2000,context=30000", ("--gpus", "2")),
    ("gpt-oss-20b", "rtx 4090", "users=200,context=32000", ("--kv", "fp16")),
    ("recurrentgemma-2b", "rtx 3060", "users=3000,context=8000", ()),
    ("qwen3-8b", "rtx 4090", "users=20,context=9999", ("--headroom", "2GiB")),
    ("qwen3-8b", "rtx 4090", "users=290,context=1000", ("--weights", "int8")),
    ("qwen3-8b", "m3 max 64gb", "users=90,context=8000", ()),
    ("llama-3-8b", "rtx 4090", "users=50,context=4000", ("--shared-prefix", "1000")),
    ("llama-3-8b", "rtx 4090", "users=500,context=4000", ("--offload", "ram:64GiB")),
    ("llama-3-8b", "rtx 4090", "users=1,context=300000", ("--window", "100000")),
    ("llama-3-8b", "rtx 4090", "users=50,context=4000", ("--block-tokens", "64")),
]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert quick_plan(["plan", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("model", "gpu", "goal", "flags"), GOALS)
def test_every_change_that_a_goal_proposes_fits_when_it_is_typed(
    model: str, gpu: str, goal: str, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, model, "--gpu", gpu, "--goal", goal, *flags)["goal"]
    assert not found["fits"]
    assert found["changes"]
    tried = [(change["command"], change["margin_bytes"]) for change in found["changes"]]
    if found["combination"]:
        last = found["combination"][-1]
        tried.append((found["combination_command"], last["margin_bytes"]))
    for command, margin_bytes in tried:
        again = plan(capsys, *shlex.split(command)[2:])
        assert again["fits"], command
        assert again["device"]["margin_bytes"] == margin_bytes, command
    # Nothing fits without them, and no part of the combination can be left out.
    parts = found["combination"] or []
    assert len(parts) != 1
    for left_out in [*parts, None]:
        others = [] if left_out is None else [part for part in parts if part is not left_out]
        command = " ".join([found["command"], *(part["flag"] for part in others)])
        assert not plan(capsys, *shlex.split(command)[2:])["fits"], command


def test_a_combination_may_share_a_start_and_let_others_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--gpu", "rtx 4090", "--weights", "int4", "--kv", "int4")
    found = plan(capsys, "llama-3-8b", *asked, "--goal", "users=90,context=8000")["goal"]
    assert [part["name"] for part in found["combination"]] == ["shared prefix", "offload to RAM"]
    assert found["combination_points"] == pytest.approx(
        sum(part["points"] for part in found["combination"]), abs=0.02
    )


def test_those_that_wait_need_room_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3-8b", "--gpu", "rtx 4090", "--users", "50", "--context", "4000")
    each, room = 4000 * 131_072, 7_120_976_282
    resident = room // each
    waiting = (50 - resident) * each
    for n_bytes, fits in ((waiting, True), (waiting - 1, False)):
        found = plan(capsys, *asked, "--offload", f"ram:{n_bytes}")
        assert found["fits"] is fits
        assert found["device"]["cache_bytes"] == resident * each
        assert found["offload"] == {
            "to": "ram", "room_bytes": n_bytes, "users_on_device": 13, "users_waiting": 37,
            "waiting_bytes": waiting, "margin_bytes": n_bytes - waiting,
            "resume_ms_at_least": pytest.approx(each / 25e9 * 1000, abs=0.001),
            "link_bytes_per_s_assumed": 25_000_000_000,
        }  # fmt: skip
        assert found["max_users"] == resident + n_bytes // each
