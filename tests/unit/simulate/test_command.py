"""`holdover simulate` as it is typed: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdover.cli.app import build_app

TRACES = Path(__file__).parents[2] / "traces"
CHATS, AGENTS, AZURE = (str(TRACES / n) for n in ("chats.jsonl", "agents.jsonl", "azure.csv"))
MODEL = ("--model", "llama-3-8b")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["simulate", *arguments])


def report(*arguments: str) -> dict:
    done = run(*arguments, *MODEL, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.stderr


def test_short_blocks_of_long_prompts_are_taken_together(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    turn = {"in": 114_000, "out": 10, "p": 0, "h": [[0, 1781]], "t": 0, "api": 1, "think": 0}
    trace.write_text(json.dumps({"id": "a", "block_size": 64, "requests": [turn]}) + "\n")
    assert report(str(trace), "--kv-memory", "64GiB")["model"]["block_tokens"] == 1024
    assert report(AGENTS, "--kv-memory", "8GiB")["model"]["block_tokens"] == 64
    assert report(CHATS, "--kv-memory", "8GiB")["model"]["block_tokens"] == 512


def test_the_curve_of_sizes_and_its_files(tmp_path: Path) -> None:
    page, table = tmp_path / "page.html", tmp_path / "sizes.csv"
    found = report(
        CHATS, "--kv-memory", "16GiB,4GiB", "--kv-memory", "8GiB", "--tiers", "ram:8GiB",
        "--tiers", "disk:1TiB", "--html", str(page), "--csv", str(table),
    )  # fmt: skip
    assert [size["asked"] for size in found["sizes"]] == ["4GiB", "8GiB", "16GiB"]
    arena = [size["arena"]["hit_tokens"] for size in found["sizes"]]
    assert arena == sorted(arena), "a larger arena holds more"
    for size in found["sizes"]:
        of_tiers = [tier["hit_tokens"] for tier in size["tiers"].values()]
        assert size["hit_tokens"] == size["arena"]["hit_tokens"] + sum(of_tiers)
        assert size["arena_bytes"] <= 16 << 30
        assert size["ttft_s"]["p50"] <= size["ttft_s"]["p95"] <= size["ttft_s"]["p99"]
        assert all(t["held_bytes"] <= t["cap_bytes"] for t in size["tiers"].values())
    assert found["sizes"][0]["tiers"]["ram"]["read_bytes"] > 0
    rows = list(csv.DictReader(table.open()))
    assert [int(row["hit_tokens"]) for row in rows] == [s["hit_tokens"] for s in found["sizes"]]
    assert [row["tiers_disk_cap_bytes"] for row in rows] == [str(1 << 40)] * 3
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "<script" not in text
    assert "src=" not in text


def test_the_same_every_time() -> None:
    arguments = (CHATS, "--kv-memory", "4GiB", "--tiers", "ram:4GiB", "--tiers", "disk:64GiB")
    assert report(*arguments) == report(*arguments)


def test_an_unbounded_cache_reuses_what_repeats() -> None:
    found = report(CHATS, "--kv-memory", "4TiB")
    [size] = found["sizes"]
    trace = found["trace"]
    blocks = trace["repeated_blocks"] / trace["blocks"]
    assert size["hit_rate"] == pytest.approx(blocks, abs=0.05)
    assert (size["arena"]["evicted_blocks"], size["parked"], size["refused"]) == (0, 0, 0)
    assert size["held_conversations"] == trace["conversations"]


def test_of_a_device_weights_and_headroom_come_off() -> None:
    [size] = report(CHATS, "--memory", "24GiB", "--headroom", "2GiB")["sizes"]
    weights_bytes = 16_060_522_496
    assert 0 <= (22 << 30) - weights_bytes - size["arena_bytes"] < 64 << 20
    [size] = report(CHATS, "--gpu", "rtx 4090", "--requests", "20")["sizes"]
    assert size["asked"] == "24.0GiB"
    assert size["served"] == 20


def test_what_is_longer_than_allowed_is_refused() -> None:
    [size] = report(CHATS, "--kv-memory", "16GiB", "--max-context", "4096")["sizes"]
    assert size["refused"] > 0
    assert size["served"] + size["refused"] == 220
    assert "that llama-3-8b was made for" in run(CHATS, *MODEL, "--kv-memory", "16GiB").stderr


def test_agents_think_and_wait() -> None:
    """One conversation at a time takes as long as all of them; half the think time, less."""
    alone, together, quick = (
        report(AGENTS, "--kv-memory", "64GiB", *more)["sizes"][0]
        for more in (("--users", "1"), (), ("--users", "1", "--speed", "2"))
    )
    assert alone["span_s"] > 2 * together["span_s"]
    assert quick["span_s"] < alone["span_s"]
    assert alone["most_running"] == 2, "the two agents of one conversation"
    assert alone["hit_tokens"] == together["hit_tokens"] > 0


def test_a_trace_without_identities_reuses_nothing() -> None:
    found = report(AZURE, "--kv-memory", "8GiB")
    assert found["sizes"][0]["hit_tokens"] == 0
    assert found["model"]["block_tokens"] == 64
    done = run(AZURE, *MODEL, "--kv-memory", "8GiB")
    assert "nothing can be reused" in done.stdout


def test_the_size_of_blocks_changes_little() -> None:
    """The partly filled last block is reused by copy, so that hits are counted in tokens."""
    coarse, fine = (
        report(AGENTS, "--kv-memory", "64GiB", "--block-tokens", text)["sizes"][0]["hit_tokens"]
        for text in ("512", "16")
    )
    assert coarse == pytest.approx(fine, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((AZURE, "--users", "3"), "--users: requests of azure.csv come at times of their own"),
        ((CHATS, "--speed", "0"), "--speed: 0.0 is not above 0"),
        ((CHATS, "--requests", "0"), "--requests: 0 is too small"),
        ((CHATS, "--kv-memory", "1GiB,x"), "--kv-memory: 'x' is not a size"),
        (
            (CHATS, "--kv-memory", "1MiB"),
            "--kv-memory 1MiB leaves no room for one block; the least is",
        ),
        ((CHATS, "--kv-memory", "64MiB"), "64MiB: 64.0 MiB of KV memory hold 512 tokens"),
        ((CHATS, "--memory", "8GiB"), "which takes 64.0 MiB; give --memory 17090MiB or more"),
        ((CHATS, "--max-context", "9"), "--max-context: 9 tokens are fewer than the shortest"),
        ((CHATS, "--memory", "8GiB", "--kv-memory", "1GiB"), "not both"),
        ((CHATS, "--gpu", "abacus"), "--gpu: no accelerator 'abacus'"),
        ((CHATS, "--decode-ms", "0"), "--decode-ms: 0.0 is not above 0"),
        ((CHATS, "--tiers", "disk:x"), "--tiers: 'x' is not a size"),
        ((CHATS, "--ram-bandwidth", "fast"), "--ram-bandwidth: 'fast' is not a size"),
        ((CHATS, "--eviction", "mru"), "--eviction: there is no 'mru'"),
        ((CHATS, "--max-sequences", "600"), "--step-tokens: 512 is less than --max-sequences 600"),
        (("no-such-file",), "no-such-file: no such file"),
    ],
)
def test_what_cannot_be_simulated(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*arguments, *MODEL)


def test_models_that_keep_what_no_block_holds() -> None:
    rows = refusal(CHATS, "--model", "deepseek-v4-pro")
    assert "deepseek-v4-pro keeps one row for 128 tokens (compressed 1/128)" in rows
    state = refusal(CHATS, "--model", "zamba2-2.7b")
    assert "zamba2-2.7b keeps 33.8 MiB of mamba2 that belong to a whole sequence" in state
