"""docs/plan-json.md against what is printed: every kind of model, every flag, every refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdover.cli.planning import quick_plan
from holdover.plan.sizing.report import SIZING_SCHEMA

PAGE = (Path(__file__).parents[3] / "docs" / "plan-json.md").read_text()
NULL = type(None)
# A type, a tuple of types, a list of one shape, or an object: a key that ends in "?" may be absent.
Shape = Any
NUMBER = (int, float)
BY_KIND = dict.fromkeys(("attention", "indexer", "state", "cross"), int)
LENGTH = {
    "tokens": int, "logical_bytes": int, "held_bytes": int, "reserved_bytes": int,
    "by_kind": BY_KIND, "beyond_model_context": bool, "max_users?": int,
}  # fmt: skip
PART = {
    "label": str, "kind": str, "layers": [int],
    "planes": [{"name": str, "heads": int, "dim": int}], "tokens_per_row": int, "rows": int,
    "bytes_per_token": NUMBER, "logical_bytes": int, "held_bytes": int, "reserved_bytes": int,
    "formula": str, "limit": str,
}  # fmt: skip
DEVICE = {
    "name": str, "count": int, "memory_bytes": int, "weights_bytes": int, "headroom_bytes": int,
    "cache_room_bytes": int, "cache_bytes": int, "needed_bytes": int, "margin_bytes": int,
    "bandwidth_bytes_per_s": (int, NULL),
    "stored": [{"label": str, "heads": int, "heads_per_device": int, "copies": NUMBER}],
}  # fmt: skip
CEILING = {
    "is": str, "users": int, "weights_read_bytes": int, "cache_read_bytes": int,
    "step_ms_at_least": float, "tokens_per_s_at_most": float,
    "tokens_per_s_per_user_at_most": float,
}  # fmt: skip
OFFLOAD = {
    "to": str, "room_bytes": int, "users_on_device": int, "users_waiting": int,
    "waiting_bytes": int, "margin_bytes": int, "resume_ms_at_least": float,
    "link_bytes_per_s_assumed": int,
}  # fmt: skip
LENGTHS = {
    "distribution": str, "mean_tokens": int, "p95_tokens": int, "mean_bytes": int, "method": str,
    "probability?": float, "max_users?": int, "max_users_of_mean?": int,
}  # fmt: skip
ENGINE = {
    "name": str, "options": dict, "devices": int, "reserved_bytes": int, "logical_bytes": int,
    "bytes_per_token": (int, NULL),
    "pool_tokens": (int, NULL),
    "buffers": [{"what": str, "cells": int, "layers": int, "buffer_bytes": int}],
    "flags": [str], "notes": [str],
}  # fmt: skip
CHANGE = {
    "name": str, "what": str, "flag": str, "pays": str, "points": NUMBER, "cost": str,
    "margin_bytes": int, "command?": str,
}  # fmt: skip
GOAL = {
    "users": int, "context_tokens": int, "fits": bool, "margin_bytes": int, "command": str,
    "changes": [CHANGE], "combination": ([CHANGE], NULL), "combination_points": (*NUMBER, NULL),
    "combination_command": (str, NULL),
}  # fmt: skip
WEIGHTS = {
    "parameters": (int, NULL), "dtype": str, "active_bytes": (int, NULL), "source": str,
}  # fmt: skip
QUALITY = {
    "kl_mean": float, "kl_p99": float, "same_top": float, "perplexity_ratio": float,
    "recall": (float, NULL), "measured": str,
}  # fmt: skip
REPORT = {
    "schema": str, "model": str, "origin": str, "architecture": str, "model_type": str,
    "layers": int, "model_context_tokens": (int, NULL), "kv": str, "block_tokens": int,
    "weights_bytes": (int, NULL), "weights": (WEIGHTS, NULL), "bytes_per_token": NUMBER,
    "first_bytes_per_token": NUMBER, "fixed_bytes": int, "formula": [str],
    "conversation": LENGTH | {"by_label": [PART]}, "contexts": [LENGTH], "users": int,
    "users_bytes": int, "shared_prefix_tokens": int, "quality": (QUALITY, NULL),
    "assumptions": [{"field": str, "value": str, "source": str}],
    "fits?": bool, "max_users?": int, "max_context?": (int, NULL), "device?": DEVICE,
    "decode_ceiling?": (CEILING, NULL), "offload?": OFFLOAD, "lengths?": LENGTHS,
    "engine?": ENGINE, "goal?": GOAL,
}  # fmt: skip

MODELS = [
    "llama-3-8b", "llama-4-scout", "gemma-3-27b", "gemma-3n-e2b", "gemma-4-31b", "mistral-7b-v0.1",
    "gpt-oss-20b", "gpt2", "falcon-7b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro",
    "glm-5", "minimax-m3", "kimi-linear-48b-a3b", "qwen3-next-80b-a3b", "recurrentgemma-2b",
    "jamba-1.5-mini", "falcon-mamba-7b", "falcon-h1-0.5b", "nemotron-3-nano-30b-a3b", "zamba2-2.7b",
    "rwkv-6-1.6b", "lfm2-8b-a1b", "whisper-large-v3", "t5-small", "llama-3.2-90b-vision", "smollm2",
]  # fmt: skip
FLAGS = [
    ("--context", "1000"),
    ("--kv", "fp8", "--users", "7", "--context", "32768"),
    ("--gpu", "h200", "--gpus", "16", "--users", "9"),
    ("--memory", "90GiB", "--users", "3000", "--shared-prefix", "64"),
    ("--gpu", "rtx 4090", "--users", "400", "--offload", "disk:4TiB", "--weights", "4GB"),
    ("--gpu", "a100 80gb", "--goal", "users=3000,context=20000", "--weights", "9GB"),
    ("--lengths", "lognormal:mean=900,p95=3000"),
    ("--gpu", "b200", "--lengths", "lognormal:median=900,p95=3000", "--headroom", "3GiB"),
    ("--engine", "vllm", "--users", "4"),
    ("--engine", "sglang:page-size=64", "--gpu", "h100", "--gpus", "8"),
    ("--engine", "llama.cpp", "--kv", "q8_0"),
    ("--kv", "int8", "--context", "2000"),
]


def errors(value: Any, shape: Shape, at: str = "") -> list[str]:
    """What is not of the shape, each with its place."""
    if isinstance(shape, tuple):
        found = [errors(value, one, at) for one in shape]
        return [] if [] in found else min(found, key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{at}: {value!r} is no list"]
        return [e for i, one in enumerate(value) for e in errors(one, shape[0], f"{at}[{i}]")]
    if not isinstance(shape, dict):
        return [] if type(value) is shape else [f"{at}: {value!r} is no {shape.__name__}"]
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is no object"]
    known = {key.removesuffix("?"): one for key, one in shape.items()}
    missing = [k for k in shape if not k.endswith("?") and k not in value]
    wrong = [f"{at}.{key}: is not in the contract" for key in value if key not in known]
    wrong += [f"{at}.{key}: is missing" for key in missing]
    for key, one in value.items():
        wrong += errors(one, known[key], f"{at}.{key}") if key in known else []
    return wrong


def keys(shape: Shape) -> set[str]:
    if isinstance(shape, dict):
        return {k.removesuffix("?") for k in shape} | {n for s in shape.values() for n in keys(s)}
    if isinstance(shape, list | tuple):
        return {name for one in shape for name in keys(one)}
    return set()


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert quick_plan(["plan", *arguments, "--json"])
    # NaN and Infinity are no JSON, whatever Python's reader makes of them.
    found: dict[str, Any] = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name)
    )
    return found


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_prints_the_contract(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in FLAGS:
        found = report(capsys, model, *flags)
        assert errors(found, REPORT) == [], flags
        check_sums(found)


def check_sums(found: dict[str, Any]) -> None:
    """What the page says of numbers that belong together."""
    assert found["schema"] == SIZING_SCHEMA
    for row in (found["conversation"], *found["contexts"]):
        assert sum(row["by_kind"].values()) == row["logical_bytes"]
        assert row["logical_bytes"] <= row["held_bytes"] <= row["reserved_bytes"]
    parts = found["conversation"]["by_label"]
    for key in ("logical_bytes", "held_bytes", "reserved_bytes"):
        assert sum(part[key] for part in parts) == found["conversation"][key]
    assert [part["formula"] for part in parts] == found["formula"]
    assert found["users_bytes"] <= found["users"] * found["conversation"]["held_bytes"]
    if "device" not in found:
        assert not {"fits", "max_users", "max_context", "decode_ceiling", "offload"} & set(found)
        return
    device = found["device"]
    room = device["memory_bytes"] - device["weights_bytes"] - device["headroom_bytes"]
    assert device["cache_room_bytes"] == room
    assert device["margin_bytes"] == room - device["cache_bytes"]
    assert device["needed_bytes"] == device["weights_bytes"] + device["cache_bytes"]
    waiting = found.get("offload", {}).get("margin_bytes", 0)
    assert found["fits"] == (device["margin_bytes"] >= 0 and waiting >= 0)
    assert found["fits"] == (found["max_users"] >= found["users"])
    assert all(part["copies"] >= 1 for part in device["stored"])


def test_the_page_names_every_key_and_no_other() -> None:
    named = set(re.findall(r"`([a-z][a-z0-9_]+)`", PAGE)) | {"stored"}
    assert keys(REPORT) <= named
    not_keys = {"file", "folder", "gguf", "catalogue", "hub", "ram", "disk", "error", "reason"}
    assert named - keys(REPORT) <= not_keys


def test_the_validator_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "llama-3-8b", "--gpu", "h100")
    for break_it in (
        lambda r: r.pop("users"),
        lambda r: r.update(fits=1),
        lambda r: r.update(extra=1),
        lambda r: r["device"].update(margin_bytes=1.5),
        lambda r: r["formula"].append(3),
        lambda r: r.update(weights="none"),
    ):
        broken = json.loads(json.dumps(found))
        break_it(broken)
        assert len(errors(broken, REPORT)) == 1


REFUSALS = [
    (("no-such-model",), "model"),
    (("llama-3-8b", "--users", "0"), "--users"),
    (("llama-3-8b", "--users", "many"), "--users"),
    (("llama-3-8b", "--users", "nan"), "--users"),
    (("llama-3-8b", "--context", "1.5"), "--context"),
    (("llama-3-8b", "--context", "9999999999999"), "--context"),
    (("llama-3-8b", "--nope"), "--nope"),
    (("llama-3-8b", "extra"), "extra"),
    (("llama-3-8b", "--gpu", "h100x"), "--gpu"),
    (("llama-3-8b", "--gpus", "2"), "--gpus"),
    (("llama-3-8b", "--memory", "0"), "--memory"),
    (("llama-3-8b", "--memory", "nan"), "--memory"),
    (("llama-3-8b", "--memory", "1GiB", "--gpu", "h100"), "--memory"),
    (("llama-3-8b", "--headroom", "nan%"), "--headroom"),
    (("llama-3-8b", "--weights", "nan"), "--weights"),
    (("llama-3-8b", "--window", "0"), "--window"),
    (("llama-3-8b", "--sinks", "4"), "--sinks"),
    (("mistral-7b-v0.1", "--window", "100"), "--window"),
    (("llama-3-8b", "--shared-prefix", "5000", "--context", "4000"), "--shared-prefix"),
    (("llama-3-8b", "--offload", "ram:3GiB"), "--offload"),
    (("llama-3-8b", "--gpu", "h100", "--offload", "tape:3GiB"), "--offload"),
    (("llama-3-8b", "--gpu", "m3 max 64gb", "--offload", "ram:3GiB"), "--offload"),
    (("llama-3-8b", "--engine", "vllm", "--shared-prefix", "9"), "--shared-prefix"),
    (("llama-3-8b", "--engine", "vllm:utilization=nan"), "--engine"),
    (("llama-3-8b", "--engine", "vllm:utilization=1.5"), "--engine"),
    (("llama-3-8b", "--lengths", "lognormal:mean=nan,p95=9"), "--lengths"),
    (("llama-3-8b", "--lengths", "lognormal:mean=4000,p95=inf"), "--lengths"),
    (("llama-3-8b", "--lengths", "lognormal:mean=4000,p95=40000"), "--lengths"),
    (("llama-3-8b", "--lengths", "missing.csv"), "--lengths"),
    (("llama-3-8b", "--lengths", "BROKEN"), "--lengths"),
    (("llama-3-8b", "--html", "missing/x.html"), "--html"),
    (("llama-3-8b", "--goal", "users=5,context=5"), "--goal"),
    (("llama-3-8b", "--gpu", "h100", "--goal", "users=nan,context=5"), "--goal"),
    (("llama-3-8b", "--csv"), "--csv"),
    (("llama-3-8b", "--assume", "parameters=nan"), "parameters"),
    (("llama-3-8b", "--context", "9", "--fields"), "--fields"),
]


@pytest.mark.parametrize(("arguments", "field"), REFUSALS)
def test_every_refusal_is_json_with_exit_code_2(
    arguments: tuple[str, ...], field: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BROKEN").write_text("tokens\n100\nmany\n")
    with pytest.raises(SystemExit) as refused:
        quick_plan(["plan", *arguments, "--json"])
    printed = capsys.readouterr()
    assert refused.value.code == 2
    found = json.loads(printed.out)
    assert errors(found, {"error": {"field": str, "reason": str}}) == []
    assert found["error"]["field"] == field
    assert found["error"]["reason"] in printed.err
    assert printed.err.count("\n") == 1


def test_an_accelerator_that_is_not_known_comes_with_those_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        quick_plan(["plan", "llama-3-8b", "--gpu", "a1000 80gb", "--json"])
    assert "A100 80GB" in json.loads(capsys.readouterr().out)["error"]["reason"]
