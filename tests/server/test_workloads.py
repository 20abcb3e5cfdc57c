"""The named workloads against a real server over the scripted engine: a token is a byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from holdover.bench.load import Target
from holdover.bench.prompts import prompt_text
from holdover.bench.report import workload_json, workload_lines
from holdover.bench.run import BenchError
from holdover.bench.workloads import CHAT, WORKLOADS, WorkloadRun, run_workload
from holdover.cli.app import build_app
from holdover.config import Config
from holdover.errors import ConfigError

from .scripted import ByteTokenizer, ScriptedEngine

CONTEXT_TOKENS = 100_000  # bytes: a word has five
STEP_S = 0.01


@pytest.fixture
def scripted(serving: Any) -> Iterator[Callable[..., Any]]:
    """`scripted(step_s=...)`: a server that answers with as many different bytes as are asked."""
    with contextlib.ExitStack() as stack:

        def begin(**options: Any) -> Any:
            options = {"answer": letters, "context_tokens": CONTEXT_TOKENS, **options}
            engine = ScriptedEngine(capacity_tokens=CONTEXT_TOKENS, **options)
            stack.callback(engine.shutdown, 0.0)
            limit = engine.context_tokens
            served = serving(engine, ByteTokenizer(), Config(grace_s=0.2), max_context_tokens=limit)
            return stack.enter_context(served)

        yield begin


def letters(prompt: str) -> bytes:
    """Different for different prompts, so that a history shows whose answer it holds."""
    return (f"{hash(prompt) & 0xFFFFFF:06x} " * 30).encode()


def run(server: Any, name: str, **options: Any) -> WorkloadRun:
    extra_body = options.pop("extra_body", {})
    return asyncio.run(run_workload(Target(server.url, extra_body=extra_body), name, **options))


def prompts(server: Any) -> list[str]:
    """What the model was given, the warm-up left out."""
    return [bytes(prompt).decode() for prompt in server.engine.prompts][1:]


def values(run: WorkloadRun) -> dict[str, tuple[float, ...]]:
    return {figure.name: figure.values for figure in run.figures}


def test_single_measures_the_pace_of_the_tokens(scripted: Any) -> None:
    server = scripted(step_s=STEP_S)
    done = run(server, "single", repeats=2)
    assert [len(prompt.split()) for prompt in prompts(server)] == [32, 32]
    assert [sample.output_tokens for sample in done.samples] == [128, 128]
    for value_ms, sample in zip(values(done)["per_token_ms"], done.samples, strict=True):
        assert value_ms >= STEP_S * 1000 * 0.95  # a late first piece takes from the rest
        assert value_ms <= (sample.end_s - sample.start_s) * 1000 / 127


def test_prefill_is_tokens_of_the_prompt_by_time_to_the_first(scripted: Any) -> None:
    server = scripted()
    done = run(server, "prefill", repeats=2)
    found = values(done)
    assert [len(prompt.split()) for prompt in prompts(server)] == [2048, 2048, 6000, 6000]
    assert set(found) == {
        "prefill_2048_tokens_per_s", "ttft_2048_ms", "prefill_6000_tokens_per_s", "ttft_6000_ms"
    }  # fmt: skip
    for words, two in ((2048, done.samples[:2]), (6000, done.samples[2:])):
        for sample, rate, first_ms in zip(
            two, found[f"prefill_{words}_tokens_per_s"], found[f"ttft_{words}_ms"], strict=True
        ):
            assert first_ms == pytest.approx(1000 * (sample.ttft_s or 0))
            assert rate == pytest.approx((sample.prompt_tokens or 0) / (sample.ttft_s or 0))


def test_again_and_decode_send_one_prompt(scripted: Any) -> None:
    for name, words in (("again", 2048), ("decode", 6000)):
        server = scripted()
        done = run(server, name, repeats=3)
        assert len(prompts(server)) == 4
        assert len(set(prompts(server))) == 1
        assert len(prompts(server)[0].split()) == words
        assert [len(figure.values) for figure in done.figures] == [3]


def test_streams_are_all_there_at_once(scripted: Any) -> None:
    server = scripted(step_s=0.005)
    most = 0

    def answer(prompt: str) -> bytes:
        nonlocal most
        most = max(most, len(server.engine._running) + 1)
        return letters(prompt)

    server.engine.answer = answer
    done = run(server, "streams", repeats=1)
    assert most == 16
    wall_s = max(s.end_s for s in done.samples) - min(s.start_s for s in done.samples)
    assert values(done)["output_tokens_per_s"] == (pytest.approx(16 * 128 / wall_s),)


@pytest.mark.parametrize("name", ["single", "prefill", "streams"])
def test_repetitions_share_no_prompt(name: str, scripted: Any) -> None:
    server = scripted()
    run(server, name, repeats=2)
    for one, other in combinations(prompts(server), 2):
        assert one[:40] != other[:40]


def test_chat_resends_the_whole_history_with_the_servers_answers(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(WORKLOADS["chat"], run=replace(CHAT, answer_tokens=16).run)
    monkeypatch.setitem(WORKLOADS, "chat", few)  # 72 answers
    server = scripted()
    done = run(server, "chat", repeats=1)
    turns: dict[str, list[str]] = {}
    for prompt in prompts(server):
        turns.setdefault(prompt[:60], []).append(prompt)
    assert len(turns) == 12
    for sent in turns.values():
        assert len(sent) == 6
        for before, after in pairwise(sent):
            assert after.startswith(before + letters(before)[:16].decode())
    firsts_ms = sorted(1000 * (sample.ttft_s or 0) for sample in done.samples)
    p50, p95 = (values(done)[name][0] for name in ("ttft_p50_ms", "ttft_p95_ms"))
    assert firsts_ms[35] <= p50 <= firsts_ms[36]
    assert firsts_ms[67] <= p95 <= firsts_ms[68]


def test_the_same_seed_sends_the_same_requests(scripted: Any) -> None:
    sent = []
    for seed in (3, 3, 4):
        server = scripted()
        run(server, "single", seed=seed, repeats=1)
        sent.append(server.engine.prompts)
    assert sent[0] == sent[1] != sent[2]
    assert prompt_text(3, "single/0", 32) in bytes(sent[0][1]).decode()


def test_more_context_than_the_server_has_is_its_own_message(scripted: Any) -> None:
    server = scripted(context_tokens=4096)
    with pytest.raises(BenchError, match=r"workload prefill: HTTP 400: .*4096"):
        run(server, "prefill")


def test_an_answer_that_ends_early_is_no_figure(scripted: Any) -> None:
    server = scripted(answer=lambda prompt: b"short")
    with pytest.raises(BenchError, match=r"6 tokens instead of 128; .*--extra-body"):
        run(server, "single")


def test_a_prompt_in_the_cache_already_is_no_prefill(scripted: Any) -> None:
    server = scripted()
    server.engine.cached_tokens = 9000
    run(server, "again", repeats=1)
    with pytest.raises(BenchError, match=r"9000 of \d+ prompt tokens .*--seed"):
        run(server, "prefill")


def test_repeats_and_names_that_cannot_be_name_their_flag(scripted: Any) -> None:
    server = scripted()
    with pytest.raises(ConfigError, match="--repeats: 0"):
        run(server, "single", repeats=0)
    with pytest.raises(ConfigError, match="--workload: 'sprint' is none of single, prefill"):
        run(server, "sprint")


def test_progress_reaches_its_total(scripted: Any) -> None:
    for name in ("prefill", "again"):
        heard: list[tuple[int, int]] = []
        run(scripted(), name, repeats=2, on_request=partial(_note, heard))
        assert heard[0][0] == 0
        assert heard[-1][0] == heard[-1][1] == len(heard) - 1


def _note(heard: list[tuple[int, int]], done: int, total: int) -> None:
    heard.append((done, total))


def test_lines_and_json_say_the_same(scripted: Any) -> None:
    done = run(scripted(), "prefill", repeats=2)
    report = json.loads(json.dumps(workload_json(done)))
    lines = "\n".join(workload_lines(report))
    assert report["schema"] == "holdover.bench.workload/1"
    assert report["requests"] == 4
    figure = report["figures"]["ttft_6000_ms"]
    assert figure["median"] == pytest.approx(sum(figure["values"]) / 2)
    assert (figure["least"], figure["most"]) == tuple(sorted(figure["values"]))
    assert f"{figure['median']:,.1f} ms ({figure['least']:,.1f} to" in lines
    assert f"{report['prompt_tokens']:,} tokens, 0 of them reused" in lines


def test_the_command_line_runs_them(scripted: Any) -> None:
    server = scripted()
    asked = ["bench", "--url", server.url, "--workload", "again", "--repeats", "2", "--json"]
    done = CliRunner().invoke(build_app(), [*asked, "--extra-body", '{"top_p": 0.5}'])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["figures"]["ttft_again_ms"]["values"]) == 2
    assert {params.top_p for params in server.engine.params} == {0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "single", "--streams", "2"], "--streams"),
        (["--repeats", "2"], "--repeats"),
        (["--extra-body", "{top_k: 1}"], "--extra-body"),
        (["--extra-body", "[1]"], "--extra-body"),
    ],
)
def test_flags_that_cannot_work_are_named(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(build_app(), ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_help_names_every_workload() -> None:
    text = CliRunner().invoke(build_app(), ["bench", "--help"], env={"COLUMNS": "200"}).stdout
    assert f"[{'|'.join(WORKLOADS)}]" in text
