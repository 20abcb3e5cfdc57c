"""From a configuration to an answer: everything allocated is what the plan says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdover.config import Config
from holdover.engine.api import Event
from holdover.engine.build import build_engine
from holdover.engine.planning import end_layout, plan_serving
from holdover.errors import BudgetError, ModelFileError, PluginError

from .conftest import GREEDY, Loaded, Reply


@pytest.fixture
def config(tiny: Loaded) -> Config:
    path = str(Path(tiny.checkpoint.path))
    return Config(model=path, kv_memory="3MiB", dtype="fp32", kv="fp32", threads=2, step_tokens=64)


def test_a_plan_becomes_an_engine_of_its_size(config: Config) -> None:
    planned = plan_serving(config)
    engine = build_engine(planned)
    assert torch.get_num_threads() == 2
    events: list[Event] = []
    done = threading.Event()

    def sink(event: Event) -> None:
        events.append(event)
        if event.finish_reason is not None:
            done.set()

    engine.submit(tuple(engine.tokenizer.encode("hello")), GREEDY, sink)
    assert done.wait(60)
    engine.shutdown(0)
    stats = engine.stats()
    assert stats.planned_bytes == stats.allocated_bytes == planned.plan.arena_bytes
    assert stats.held_bytes == 0
    assert stats.cached_bytes > 0
    assert events[-1].finish_reason in ("length", "stop")
    assert engine.limits == planned.limits
    assert engine.fingerprint.startswith("fp_")


def test_room_for_ends_of_prompts(config: Config) -> None:
    """`build_engine` compares it with what it allocates: 10 kept, and those of one step."""
    for changed, n_rows in (
        ({}, 10 + 16), ({"prompt_ends": 0}, 0), ({"reservation": "paged"}, 0),
    ):  # fmt: skip
        asked = {"prompt_ends": 10, "max_sequences": 16, **changed}
        planned = plan_serving(replace(config, **asked))
        assert planned.plan.parts.ends_bytes == n_rows * 64 * 4
        if not n_rows:
            build_engine(planned).shutdown(0)
    sparse = end_layout(replace(config, sparse_blocks=8), planned.geometry, planned.limits)
    assert sparse.nbytes == 0


def test_ways_of_taking_room_answer_alike_and_hold_what_they_say(config: Config) -> None:
    """Contiguous: exactly as many at once as the longest context fits into the arena."""
    text = "the same beginning of every prompt, long enough for two blocks, and then "
    found: dict[str, list[tuple[int, ...]]] = {}
    for reservation in ("shared", "paged", "contiguous"):
        changed = {"reservation": reservation, "max_context": 400, "kv_memory": "1MiB"}
        planned = plan_serving(replace(config, **changed))
        whole = planned.layout.whole_conversations(planned.plan.n_sectors, 400)
        engine = build_engine(planned)
        most = 0
        replies = []
        step = engine._scheduler.commit

        def commit(batch: Any, engine: Any = engine, step: Any = step) -> None:
            nonlocal most
            most = max(most, len(engine._scheduler.running))
            step(batch)

        engine._scheduler.commit = commit  # type: ignore[method-assign]
        for i in range(3 * whole):
            replies.append(Reply())
            prompt = tuple(engine.tokenizer.encode(f"{text}{i}"))
            engine.submit(prompt, GREEDY, replies[-1].events.put)
        answers = [reply.answer() for reply in replies]
        engine.shutdown(0)
        found[reservation] = [tuple(answer.tokens) for answer in answers]
        reused = sum(answer.cached_tokens for answer in answers)
        assert (reused > 0) == (reservation == "shared")
        assert (most == whole) == (reservation == "contiguous"), (most, whole)
        said = [text for text in planned.warnings if reservation in text]
        assert len(said) == (reservation != "shared")
    assert found["shared"] == found["paged"] == found["contiguous"]


def test_the_fingerprint_follows_what_decides_an_answer(config: Config) -> None:
    found = []
    for changed in ({}, {}, {"kv": "bf16"}, {"dtype": "bf16"}, {"threads": 1}):
        engine = build_engine(plan_serving(replace(config, **changed)))
        engine.shutdown(0)
        found.append(engine.fingerprint)
    assert found[0] == found[1] == found[4], "the same in every start"
    assert len({*found}) == 3


def test_keys_stored_less_other_centres_are_never_found(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The centres of int4's keys are part of what a cached block is known by; int8 has none."""
    found = []
    starts = (("int4", "a"), ("int4", "a"), ("int4", "b"), ("int8", "a"), ("int8", "b"))
    for kv, text in starts:
        monkeypatch.setattr("holdover.models._centring.TEXT", text)
        planned = plan_serving(replace(config, kv=kv))
        assert (planned.plan.parts.centres_bytes > 0) == (kv == "int4")
        engine = build_engine(planned)
        engine.shutdown(0)
        found.append(engine.fingerprint)
    assert found[0] == found[1] != found[2]
    assert found[3] == found[4]


def test_an_arena_that_the_machine_refuses_is_said_before_the_load(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdover.engine.build.load_model", None)
    planned = plan_serving(replace(config, kv_memory="1000000TiB"))
    with pytest.raises(BudgetError, match=r"refuses the .* of the KV arena .*--kv-memory"):
        build_engine(planned)


def test_a_chat_template_that_cannot_be_compiled_stops_the_start(
    config: Config, tmp_path: Path
) -> None:
    """Found by the first chat, it was a 500 without a reason to every one."""
    folder = shutil.copytree(config.model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message }}")
    with pytest.raises(ModelFileError, match="chat template that cannot be compiled"):
        build_engine(plan_serving(replace(config, model=str(folder))))


_FREED_AFTER_BUILD = """
import ctypes, re
from pathlib import Path
from holdover.config import Config
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving

def resident_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

engine = build_engine(plan_serving(Config(kv_memory="16MiB", dtype="fp32", threads=1)))
before = resident_mib()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident_mib())
engine.shutdown(0)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_what_loading_freed_is_given_back() -> None:
    """It stayed with the allocator, and a server with --memory came to more than that."""
    done = subprocess.run(
        [sys.executable, "-c", _FREED_AFTER_BUILD], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 8


_GROWTH_IN_A_PREFILL = """
import re, threading
from pathlib import Path
from holdover.config import Config
from holdover.engine.api import SamplingParams
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving

def status_bytes(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def ask(engine, n_tokens):
    done = threading.Event()
    params = SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True)
    engine.submit(tuple(range(5, 5 + n_tokens)), params, lambda e: e.finish_reason and done.set())
    assert done.wait(300)

planned = plan_serving(Config(kv_memory="48MiB", step_tokens=256, threads=2))
engine = build_engine(planned)
ask(engine, 1)  # what a first request loads
before = status_bytes("RssAnon")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
files = status_bytes("VmRSS") - before
ask(engine, 1024)  # four whole steps
parts = planned.plan.parts
may_grow = parts.activations_bytes + parts.workspace_bytes + parts.tables_bytes
may_grow += planned.plan.arena_bytes
peak = status_bytes("VmHWM")
print(peak - files - before, may_grow, peak, planned.plan.memory_bytes)
engine.shutdown(0)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_a_prefill_takes_no_more_than_planned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH_IN_A_PREFILL],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    growth, may_grow, peak, planned = map(int, done.stdout.split())
    assert growth <= may_grow + (1 << 20)
    assert peak <= planned


def test_a_wrong_plan_stops_the_start(config: Config) -> None:
    planned = plan_serving(config)
    parts = replace(planned.plan.parts, weights_bytes=planned.plan.parts.weights_bytes - 1)
    memory_bytes = planned.plan.memory_bytes - 1
    wrong = replace(planned, plan=replace(planned.plan, parts=parts, memory_bytes=memory_bytes))
    with pytest.raises(AssertionError, match="weights"):
        build_engine(wrong)


@pytest.mark.parametrize(("name", "flag"), [("backend", "--backend"), ("eviction", "--eviction")])
def test_a_wrong_plugin_name_names_its_flag(config: Config, name: str, flag: str) -> None:
    with pytest.raises(PluginError, match=rf"^{flag}: there is no 'magic'; use one of: "):
        plan_serving(replace(config, model="no-such-model", **{name: "magic"}))  # before all else
