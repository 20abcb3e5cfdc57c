"""The named workloads against a real server over the scripted engine: a token is a byte."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdover.bench.conversations import Conversations, Restart
from holdover.bench.load import Target
from holdover.bench.measure import Measured, Settings, measure
from holdover.bench.prompts import prompt_text
from holdover.bench.report import Report, bench_json, headline_figures, warnings
from holdover.bench.restart import measure_restarts
from holdover.bench.session import run_loop
from holdover.bench.text import bench_text
from holdover.bench.workload import Workload
from holdover.bench.workloads import WORKLOADS, Concurrent, LongContext, Prefill, Rag, Single
from holdover.cli.app import build_app
from holdover.config import Config
from holdover.errors import ConfigError

from .scripted import ByteTokenizer, ScriptedEngine

CONTEXT_TOKENS = 100_000  # bytes: a word has five
STEP_S = 0.01
CHAT = Conversations(
    users=3, turns=3, system_words=20, first_words=12, words=8, output_tokens=16
)  # fmt: skip
RUN = {"processor": "a CPU", "cores": 2, "load_before": 0.0, "command": "holdover", "time": "now"}


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


def run(
    server: Any, workload: Workload, name: str = "test", check: int = 0, repeats: int = 1,
    seed: int = 0, extra_body: Any = None,
) -> Measured:  # fmt: skip
    target = Target(server.url, extra_body=extra_body or {})
    settings = Settings(seed, repeats, check=check)
    [measured] = run_loop(measure([target], name, workload, settings))
    return measured


def report_of(measured: Measured, workload: Workload) -> Report:
    report = bench_json("test", workload, [measured], RUN, 0, None)
    return json.loads(json.dumps(report))


def prompts(server: Any) -> list[str]:
    """What the model was given, the warm-up left out."""
    return [bytes(prompt).decode() for prompt in server.engine.prompts][1:]


def test_single_measures_the_pace_of_the_tokens(scripted: Any) -> None:
    server = scripted(step_s=STEP_S)
    measured = run(server, Single(input_words=32, output_tokens=40, requests=2))
    assert [len(prompt.split()) for prompt in prompts(server)] == [32, 32]
    assert [sample.output_tokens for sample in measured.samples] == [40, 40]
    for sample in measured.samples:
        assert (sample.per_token_s or 0) >= STEP_S * 0.95  # a late first piece takes from the rest
        assert (sample.per_token_s or 0) <= sample.total_s / 39


def test_prefill_sends_each_prompt_cold_and_then_warm(scripted: Any) -> None:
    server = scripted()
    workload = Prefill(input_words="20,60")
    report = report_of(run(server, workload, repeats=2), workload)
    sent = prompts(server)
    assert [len(prompt.split()) for prompt in sent] == [20, 20, 60, 60] * 2
    assert all(sent[i] == sent[i + 1] for i in range(0, 8, 2))
    assert len(set(sent)) == 4
    parts = report["servers"][0]["parts"]
    assert [(p["name"], p["x"], p["line"]) for p in parts] == [
        ("20 cold", 20, "cold"), ("20 warm", 20, "warm"),
        ("60 cold", 60, "cold"), ("60 warm", 60, "warm"),
    ]  # fmt: skip
    for part in parts:
        for request, rate in zip(
            part["requests"], part["figures"]["prompt_tokens_per_s"]["values"], strict=True
        ):
            assert rate == pytest.approx(1000 * request["prompt_tokens"] / request["ttft_ms"])


def test_long_context_has_a_part_for_each_length(scripted: Any) -> None:
    server = scripted()
    measured = run(server, LongContext(input_words="10,30", output_tokens=4))
    assert [len(prompt.split()) for prompt in prompts(server)] == [10, 30]
    assert [part.x for part in measured.repetitions[0].parts] == [10, 30]


def test_concurrent_keeps_as_many_streams_as_it_says(scripted: Any) -> None:
    server = scripted(step_s=0.005)
    most: list[int] = []

    def answer(prompt: str) -> bytes:
        most.append(len(server.engine._running) + 1)
        return letters(prompt)

    server.engine.answer = answer
    workload = Concurrent(streams="1,4", requests=6, input_words=5, output_tokens=10)
    report = report_of(run(server, workload), workload)
    assert max(most[1:7]) == 1
    assert max(most[7:]) == 4
    one, four = report["servers"][0]["parts"]
    assert [len(part["requests"]) for part in (one, four)] == [6, 6]
    starts = [request["start_s"] for request in four["requests"]]
    ends = [r["start_s"] + r["request_ms"] / 1000 for r in four["requests"]]
    rate = four["figures"]["output_tokens_per_s"]["median"]
    assert rate == pytest.approx(60 / (max(ends) - min(starts)))


def test_a_rate_begins_requests_whether_or_not_others_ended(scripted: Any) -> None:
    server = scripted(step_s=0.05)
    workload = Concurrent(rate="40", requests=12, input_words=5, output_tokens=12)
    measured = run(server, workload)
    starts_s = sorted(sample.start_s for sample in measured.samples)
    assert starts_s[-1] - starts_s[0] < min(sample.total_s for sample in measured.samples)
    assert measured.repetitions[0].parts[0].name == "40 a second"


@pytest.mark.parametrize("name", ["single", "prefill", "concurrent", "rag"])
def test_repetitions_share_no_prompt(name: str, scripted: Any) -> None:
    small = {
        "single": Single(requests=2, output_tokens=2),
        "prefill": Prefill(input_words="10"),
        "concurrent": Concurrent(streams="2", requests=2, output_tokens=2, input_words=10),
        "rag": Rag(documents=1, per_request=1, requests=1, output_tokens=2),
    }
    server = scripted()
    run(server, small[name], repeats=2)
    sent = list(dict.fromkeys(prompts(server)))
    assert len(sent) > 1
    for one, other in combinations(sent, 2):
        assert one[:40] != other[:40]


def test_chat_resends_the_whole_history_behind_one_system_prompt(scripted: Any) -> None:
    server = scripted()
    measured = run(server, CHAT)
    shared = f"<system>{prompt_text(0, 'test/0/system', 20)}<user>"
    turns: dict[str, list[str]] = {}
    for prompt in prompts(server):
        assert prompt.startswith(shared)
        turns.setdefault(prompt[len(shared) :][:40], []).append(prompt)
    assert len(turns) == 3
    for sent in turns.values():
        assert len(sent) == 3
        for before, after in pairwise(sent):
            assert after.startswith(before + letters(before)[:16].decode())
    parts = measured.repetitions[0].parts
    assert [(part.name, len(part.samples)) for part in parts] == [
        ("all turns", 9), ("turn 1", 3), ("turn 2", 3), ("turn 3", 3)
    ]  # fmt: skip
    assert len(measured.samples) == 9  # a sample in two parts counts once


def test_users_think_and_come_at_a_rate(scripted: Any) -> None:
    server = scripted()
    slow = replace(CHAT, think_s=0.1, rate=50.0, turns=2)
    fast = replace(CHAT, turns=2)
    thinking, quick = run(server, slow), run(server, fast, seed=1)
    spent = [
        max(s.end_s for s in m.samples) - min(s.start_s for s in m.samples)
        for m in (thinking, quick)
    ]
    assert spent[0] > spent[1] + 0.05


def test_a_user_whose_turn_failed_stops(scripted: Any) -> None:
    server = scripted(context_tokens=300)
    workload = replace(CHAT, words=40)
    report = report_of(run(server, workload), workload)
    totals = report["servers"][0]["totals"]
    assert (totals["requests"], totals["finished"]) == (6, 3)
    assert totals["errors"] == {"HTTP 400": 3}
    assert any("300" in text for text in warnings(report["servers"][0]))


def test_rag_shares_documents_in_an_order_that_varies(scripted: Any) -> None:
    server = scripted()
    run(server, Rag(documents=4, document_words=6, per_request=2, requests=12, output_tokens=2))
    orders = {tuple(re.findall(r"Document (\d)", prompt)) for prompt in prompts(server)}
    assert all(len(set(order)) == 2 for order in orders)
    assert len(orders) > 4
    texts = {
        match for prompt in prompts(server) for match in re.findall(r"Document \d: [^\n]+", prompt)
    }
    assert len(texts) == 4
    assert all(prompt.count("Question: ") == 1 for prompt in prompts(server))


def test_the_same_seed_sends_the_same_requests(scripted: Any) -> None:
    sent = []
    for seed in (3, 3, 4):
        server = scripted()
        run(server, CHAT, seed=seed)
        sent.append(sorted(map(bytes, server.engine.prompts)))
    assert sent[0] == sent[1] != sent[2]


def test_an_answer_that_ends_early_is_truncated(scripted: Any) -> None:
    server = scripted(answer=lambda prompt: b"short")
    workload = Single(requests=2)
    report = report_of(run(server, workload), workload)
    assert report["servers"][0]["totals"]["truncated"] == 2
    assert "2 answers ended early; if it has another field" in bench_text(report)


def test_a_prompt_in_the_cache_already_is_said(scripted: Any) -> None:
    server = scripted()
    server.engine.cached_tokens = 9000
    workload = Prefill(input_words="2000")
    report = report_of(run(server, workload), workload)
    assert re.search(r"had 9000 of \d+ prompt tokens .*--seed", bench_text(report))


def test_rubbish_is_not_passed_over(scripted: Any) -> None:
    server = scripted(answer=lambda prompt: b"!" * 200)
    asked = ["bench", "single", "--url", server.url, "--repeats", "1", "--requests", "2"]
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 1
    assert "warning: 2 answers are no text: one character" in done.stdout


def test_answers_that_change_under_load_are_found(scripted: Any) -> None:
    """Asked again at the end, alone, with the very same messages."""
    server = scripted()
    workload = Concurrent(streams="4", requests=8, input_words=5, output_tokens=20)
    alike = run(server, workload, check=3)
    assert (alike.again.asked, alike.again.equal, alike.again.unlike) == (3, 3, 0)
    assert all(prompt in prompts(server)[:8] for prompt in prompts(server)[8:])
    assert len(alike.samples) == 8

    server = scripted()
    server.engine.answer = lambda prompt: letters(f"{len(server.engine.prompts)}{prompt}")
    other = run(server, workload, check=3)
    assert (other.again.equal, other.again.unlike) == (0, 3)
    assert any("others when asked for again" in text for text in
               warnings(report_of(other, workload)["servers"][0]))  # fmt: skip


def test_servers_take_turns_and_are_compared(scripted: Any) -> None:
    fast, slow = scripted(step_s=0.01), scripted(step_s=0.03)
    order: list[str] = []
    for name, server in (("A", fast), ("B", slow)):
        server.engine.answer = partial(_noting, order, name)
    workload = Single(requests=2, output_tokens=12)
    targets = [Target(fast.url, name="A"), Target(slow.url, name="B")]
    measured = run_loop(measure(targets, "single", workload, Settings(repeats=2, check=0)))
    assert order == ["A", "B", *"AABBAABB"]  # the warm-up first
    report = bench_json("single", workload, measured, RUN, 0, None)
    ratios = {(r["part"], r["figure"]): r for r in report["ratios"]}
    ratio = ratios["one stream", "per_token_p50_ms"]
    assert (ratio["server"], ratio["against"], len(ratio["values"])) == ("A", "B", 2)
    mine, other = (
        headline_figures(workload, each)["one stream: per_token_p50_ms"] for each in measured
    )
    assert ratio["values"] == pytest.approx([b / a for a, b in zip(mine, other, strict=True)])
    assert 1.5 < ratio["median"] < 6
    assert ratios["one stream", "output_tokens_per_s"]["median"] > 1  # more is better
    assert "A against B" in bench_text(report)


def _noting(order: list[str], name: str, prompt: str) -> bytes:
    order.append(name)
    return letters(prompt)


def test_progress_reaches_its_total(scripted: Any) -> None:
    for workload in (Prefill(input_words="10"), Single(requests=2), CHAT):
        heard: list[tuple[int, int]] = []
        target = Target(scripted().url)
        settings = Settings(repeats=2, check=2)
        run_loop(measure([target], "test", workload, settings, partial(_note, heard)))
        assert heard[0][0] == 0
        assert heard[-1][0] == heard[-1][1] == len(heard) - 1


def _note(heard: list[tuple[int, int]], done: int, total: int) -> None:
    heard.append((done, total))


def test_the_command_line_writes_what_it_prints(scripted: Any, tmp_path: Path) -> None:
    server = scripted()
    kept, page = tmp_path / "figures.json", tmp_path / "page.html"
    asked = [
        "bench", "prefill", "--url", f"ours={server.url}", "--input-words", "10,20",
        "--repeats", "2", "--slo", "ttft=10s", "--against", f"same={server.url}/v1",
        "--json-file", str(kept), "--html", str(page), "--extra-body", '{"top_p": 0.5}',
    ]  # fmt: skip
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 0, done.output
    report = json.loads(kept.read_text())
    assert report["schema"] == "holdover.bench/2"
    assert report["settings"] == {"input_words": "10,20"}
    assert [s["name"] for s in report["servers"]] == ["ours", "same"]
    assert report["servers"][0]["facts"]["version"].startswith("Holdover ")
    assert {"command", "processor", "cores", "python", "holdover"} <= report["run"].keys()
    assert bench_text(report) == done.stdout.rstrip("\n")
    figure = report["servers"][0]["parts"][0]["figures"]["ttft_p50_ms"]
    assert (figure["least"], figure["most"]) == tuple(sorted(figure["values"]))
    assert report["servers"][0]["parts"][0]["figures"]["good_share"]["median"] == 1
    html = page.read_text()
    assert html.count("<svg") >= 2
    assert "prompt, words" in html
    assert {params.top_p for params in server.engine.params} == {0.5}


def test_json_is_all_that_is_printed(scripted: Any) -> None:
    asked = ["bench", "single", "--url", scripted().url, "--requests", "1", "--repeats", "1"]
    done = CliRunner().invoke(build_app(), [*asked, "--json"])
    assert json.loads(done.stdout)["servers"][0]["totals"]["finished"] == 1


def test_nothing_answered_is_an_exit_code(scripted: Any) -> None:
    server = scripted(context_tokens=100)
    asked = ["bench", "single", "--url", server.url, "--repeats", "1"]
    done = CliRunner().invoke(build_app(), asked)
    assert done.exit_code == 1
    assert "warning: 2 x HTTP 400" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["single", "--requests", "0"], "--requests: 0"),
        (["single", "--repeats", "0"], "--repeats: 0"),
        (["concurrent", "--streams", "1,x"], "--streams: '1,x'"),
        (["concurrent", "--streams", "0"], "--streams: 0"),
        (["concurrent", "--rate", "0"], "--rate: 0"),
        (["concurrent", "--rate", "2", "--streams", "3"], "--streams: give either"),
        (["rag", "--rate", "2", "--streams", "3"], "--streams: give either"),
        (["chat", "--think-s", "-1"], "--think-s: -1"),
        (["rag", "--per-request", "9"], "--per-request: 9 is more than --documents 8"),
        (["single", "--slo", "fast"], "--slo: 'fast'"),
        (["single", "--url", "localhost:1"], "--url: 'localhost:1' does not say how; write it as"),
        (["single", "--against", "http://h"], "--against: 'http://h' is not NAME=URL"),
        (["single", "--url", "a=http://h", "--against", "a=http://i"], "two servers are named 'a'"),
        (["single", "--html", "/nowhere/at/all.html"], "--html: there is no folder /nowhere/at"),
        (["restart"], "--command: say how the server is started"),
        (["chat", "--extra-body", "{top_k: 1}"], "--extra-body"),
        (["chat", "--extra-body", "[1]"], "--extra-body"),
    ],
)
def test_flags_that_cannot_work_are_named(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(build_app(), ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_help_names_every_workload() -> None:
    text = CliRunner().invoke(build_app(), ["bench", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(re.search(rf"^ +{name} ", text, re.MULTILINE) for name in [*WORKLOADS, "restart"])


def test_keys_go_to_the_server_they_were_given_for(scripted: Any) -> None:
    from holdover.cli.bench import _targets

    first, second = _targets(Target(api_key="s3cret", model="m"), "http://a", ["b=http://b"])
    assert (first.api_key, first.model, first.name) == ("s3cret", "m", "server")
    assert (second.api_key, second.model, second.name) == (None, None, "b")


def test_restart_goes_on_where_another_process_stopped() -> None:
    script = Path(__file__).with_name("serve_scripted.py")
    workload = Restart(
        command=f"{sys.executable} {script} 0.001 0.1 {{port}} 'what it says'",
        conversations=2, first_words=10, words=5, output_tokens=4, kill=True,
    )  # fmt: skip
    measured = measure_restarts(Target(), workload, Settings(repeats=1))
    parts = measured.repetitions[0].parts
    assert [(part.name, len(part.samples)) for part in parts] == [
        ("warm", 2), ("restarted", 2), ("cold", 2)
    ]  # fmt: skip
    tokens = {part.name: [s.prompt_tokens or 0 for s in part.samples] for part in parts}
    assert all(n > 100 for n in tokens["restarted"])
    # As long a history, give or take the lengths of its words.
    assert sum(tokens["cold"]) == pytest.approx(sum(tokens["restarted"]), rel=0.2)


def test_a_workload_that_is_none_is_named() -> None:
    from holdover.bench.measure import named_workload

    with pytest.raises(ConfigError, match="'sprint' is none of single, prefill"):
        named_workload("sprint")
