"""--sparse-blocks from flag to answer: what is allocated, read, counted, found again, and
refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holdover.cache.arena import HostArena
from holdover.config import Config
from holdover.engine.api import Event, SamplingParams
from holdover.engine.build import build_engine
from holdover.engine.engine import Engine
from holdover.engine.planning import plan_serving
from holdover.errors import ConfigError
from holdover.kernels.base import AttentionBatch
from holdover.models._native import load_native
from holdover.spec.residency import Window
from holdover.spec.sparse import BOUNDS

from .conftest import byte_tokenizer_json, save_random_llama

PROMPT_TOKENS, ANSWER_TOKENS, BLOCK_TOKENS, BLOCKS = 150, 40, 8, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers of random Llama over bytes."""
    path = tmp_path_factory.mktemp("four-layers")
    save_random_llama(path, 4)
    (path / "tokenizer.json").write_text(byte_tokenizer_json())
    return path


@pytest.fixture
def config(folder: Path) -> Config:
    return Config(
        model=str(folder), kv_memory="3MiB", dtype="fp32", kv="bf16",
        threads=1, block_tokens=BLOCK_TOKENS, sparse_blocks=BLOCKS, step_tokens=64,
    )  # fmt: skip


def answer(engine: Engine, prompt: tuple[int, ...]) -> list[int]:
    tokens: list[int] = []
    done = threading.Event()

    def sink(event: Event) -> None:
        tokens.extend(event.token_ids)
        if event.finish_reason is not None:
            done.set()

    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    engine.submit(prompt, params, sink)
    assert done.wait(60)
    return tokens


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_answers_are_the_same_from_a_prefix_and_what_was_read_is_counted(
    config: Config, backend: str
) -> None:
    planned = plan_serving(replace(config, backend=backend))
    sparse = planned.layout.spec.sparse
    assert sparse is not None
    engine = build_engine(planned)
    prompt = tuple(i % 50 + 1 for i in range(PROMPT_TOKENS))
    try:
        first = answer(engine, prompt)
        stats = engine.stats()
        again = answer(engine, prompt)
        assert engine.stats().cached_tokens == PROMPT_TOKENS - 1
    finally:
        engine.shutdown(0)
    assert first == again
    assert stats.planned_bytes == stats.allocated_bytes == planned.plan.arena_bytes
    contexts = range(PROMPT_TOKENS + 1, PROMPT_TOKENS + ANSWER_TOKENS)  # the last is never computed
    blocks = [-(-n // BLOCK_TOKENS) for n in contexts]
    assert stats.decode_context_blocks == sum(blocks)
    assert stats.decode_read_blocks == len(blocks) * sparse.read_blocks
    assert stats.decode_read_bytes == sum(planned.layout.read_bytes(n) for n in contexts)
    assert stats.decode_read_bytes < stats.decode_context_bytes


def test_a_generated_token_is_the_same_however_it_is_computed(config: Config) -> None:
    """One by one, or at once after its sequence was parked: its place decides what it reads."""
    planned = plan_serving(replace(config, backend="native", max_sequences=1))
    assert planned.blueprint is not None
    plan = planned.plan
    model = load_native(planned.checkpoint, planned.blueprint, planned.dtype, plan.limits)
    arena = HostArena(plan.arena_bytes)
    workspace = torch.zeros(plan.parts.workspace_bytes, dtype=torch.uint8)
    kernels = planned.kernels.bind(arena.bytes, plan.layout, plan.limits, workspace)
    n_tokens = PROMPT_TOKENS + ANSWER_TOKENS
    tokens = torch.arange(n_tokens) % 50 + 1
    table = np.arange(-(-n_tokens // BLOCK_TOKENS), dtype=np.int32)[None]

    def compute(start: int, stop: int, n_prompt: int) -> torch.Tensor:
        counts = [np.array(n, dtype=np.int32) for n in ([0, stop - start], [stop], [n_prompt])]
        step = kernels.begin(AttentionBatch(counts[0], counts[1], (table,), counts[2]))
        last = torch.tensor([stop - start - 1])
        return model.forward(tokens[start:stop], torch.arange(start, stop), step, last).clone()

    for start in range(0, PROMPT_TOKENS, 50):
        compute(start, start + 50, PROMPT_TOKENS)
    for at in range(PROMPT_TOKENS, n_tokens):
        want = compute(at, at + 1, PROMPT_TOKENS)
    assert torch.equal(compute(PROMPT_TOKENS, n_tokens, PROMPT_TOKENS), want)
    assert not torch.equal(compute(PROMPT_TOKENS, n_tokens, n_tokens), want), "a prompt reads all"


def test_other_numbers_of_blocks_have_other_keys(config: Config) -> None:
    found = set()
    for blocks in (None, BLOCKS, BLOCKS + 1):
        engine = build_engine(plan_serving(replace(config, sparse_blocks=blocks)))
        engine.shutdown(0)
        found.add(engine.fingerprint)
    assert len(found) == 3


def test_bounds_are_in_the_plan(config: Config) -> None:
    planned = plan_serving(config)
    [block] = planned.layout.blocks
    sparse = planned.layout.spec.sparse
    assert sparse is not None
    layers = [p.layer for p in block.fields if p.plane == BOUNDS]
    assert layers == list(block.group.layers[sparse.dense_layers :])
    keys = planned.geometry
    assert block.bounds_nbytes == len(layers) * 2 * keys.kv_heads * keys.head_dim * 2
    without = plan_serving(replace(config, sparse_blocks=None))
    assert without.layout.fingerprint != planned.layout.fingerprint


def test_what_cannot_be_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--sparse-blocks: 7 blocks of 8 .* give 8 or more"):
        plan_serving(replace(config, sparse_blocks=7))
    most = 1024 // BLOCK_TOKENS - 4
    plan_serving(replace(config, sparse_blocks=most))
    for blocks in (most + 1, 10**30):
        with pytest.raises(ConfigError, match=rf"leave out nothing .* give {most} or less"):
            plan_serving(replace(config, sparse_blocks=blocks))
    with pytest.raises(ConfigError, match="--sparse-blocks: beside --window"):
        plan_serving(replace(config, window=64))
    with pytest.raises(ConfigError, match="--sparse-blocks: 0 is too small"):
        replace(config, sparse_blocks=0)
    read = plan_serving(config).geometry
    windows = tuple(replace(layer, residency=Window(64)) for layer in read.layers)
    monkeypatch.setattr(
        "holdover.engine.planning.read_geometry", lambda config: replace(read, layers=windows)
    )
    with pytest.raises(ConfigError, match=r"--sparse-blocks: .* no layer that can be read so"):
        plan_serving(config)
