"""Maxima are exact: n fits and n + 1 does not, for real models, devices and codecs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.plan.sizing.offload import Offload
from holdover.plan.sizing.question import Question
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.solve import solve

MODELS = [
    "llama-3-8b", "llama-3-70b", "llama-4-scout", "gemma-3-27b", "gemma-3n-e2b", "gemma-4-31b",
    "mistral-7b-v0.1", "gpt-oss-20b", "falcon-7b", "deepseek-v3.2", "deepseek-v4-pro", "glm-5",
    "kimi-linear-48b-a3b", "qwen3-next-80b-a3b", "recurrentgemma-2b", "jamba-1.5-mini",
    "falcon-mamba-7b", "falcon-h1-0.5b", "zamba2-2.7b", "rwkv-6-1.6b", "lfm2-8b-a1b",
    "whisper-large-v3", "llama-3.2-90b-vision",
]  # fmt: skip
DEVICES = [("rtx 4090", 1), ("h100", 4), ("mi300x", 8)]
CODECS = ["bf16", "fp8", "int8", "int4", "q4_0", "k=int8,v=int4"]


def scenario(model: str, gpu: str, gpus: int, kv: str, users: int, context: int) -> Scenario:
    question = Question(
        context=context, users=users, gpu=gpu, gpus=gpus, weights="1GiB", headroom="1GiB"
    )
    found = solve(model, question, kv=kv).scenario
    assert found is not None
    return found


def check_edges(base: Scenario) -> None:
    users = base.max_users()
    if users < 2**39:
        assert users == 0 or replace(base, users=users).fits
        assert not replace(base, users=users + 1).fits
    longest = base.max_context_tokens()
    if longest is None:
        assert replace(base, context_tokens=10**9).fits
        return
    assert longest == 0 or replace(base, context_tokens=longest).fits
    # Blocks and compressed rows make steps: the next token may be free of cost, never this one.
    assert not replace(base, context_tokens=longest + 1).fits


@pytest.mark.parametrize("model", MODELS)
def test_one_more_user_or_token_does_not_fit(model: str) -> None:
    for (gpu, gpus), kv in product(DEVICES, CODECS):
        base = scenario(model, gpu, gpus, kv, users=37, context=5000)
        check_edges(base)
        check_edges(replace(base, shared_tokens=1000))
        check_edges(replace(base, offload=Offload("ram", 300 * 2**30)))
        check_edges(replace(base, shared_tokens=1000, offload=Offload("disk", 10**12)))
        if base.whole_cache.can_be_windowed():
            windowed = replace(base, rank_cache=base.rank_cache.windowed(512, 4))
            check_edges(windowed)


@given(
    st.sampled_from(MODELS), st.sampled_from(DEVICES), st.sampled_from(["bf16", "fp8"]),
    st.integers(1, 300), st.integers(1, 60_000), st.integers(0, 3000), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_more_users_or_tokens_never_take_less(
    model: str, device: tuple[str, int], kv: str, users: int, context: int, shared: int, away: bool
) -> None:
    base = scenario(model, *device, kv, users, context)
    base = replace(base, shared_tokens=shared, offload=Offload("ram", 2**36) if away else None)
    logical = base.rank_cache.logical_bytes(context)
    assert logical <= base.rank_cache.held_bytes(context)
    for step in (1, 7, 16, 1000):
        more_users = base.held_bytes(users + step, context)
        longer = base.held_bytes(users, context + step)
        assert base.held_bytes(users, context) <= min(more_users, longer)
        assert base.max_users() >= replace(base, context_tokens=context + step).max_users()
    assert base.fits == (base.max_users() >= users)
    longest = base.max_context_tokens()
    assert base.fits == (longest is None or longest >= context)


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v4-pro", "glm-5", "gemma-3-27b"])
@pytest.mark.parametrize("shared", [1, 16, 63, 64, 320, 2048])
def test_growing_past_the_shared_start_never_frees_anything(model: str, shared: int) -> None:
    """Where a row stands for many tokens, the newest row is at the end of a block for as long."""
    cache = scenario(model, "h100", 1, "bf16", users=2, context=100).rank_cache
    held = [cache.held_by(2, n, shared) for n in range(2500)]
    assert held == sorted(held)
    alone = [cache.held_by(1, n, shared) for n in range(2500)]
    assert alone == [cache.held_bytes(n) for n in range(2500)]
    shared_bytes = [cache.shared_bytes(n, shared) for n in range(2500)]
    assert shared_bytes == sorted(shared_bytes)


def test_whole_blocks_of_the_shared_start_are_held_once() -> None:
    cache = scenario("llama-3-8b", "h100", 1, "bf16", users=2, context=100).rank_cache
    block = 16 * 131_072
    for n_tokens, shared, blocks in [
        (100, 15, 0), (100, 16, 1), (100, 99, 6), (96, 96, 5), (97, 96, 6), (1, 1, 0), (0, 5, 0),
    ]:  # fmt: skip
        assert cache.shared_bytes(n_tokens, shared) == blocks * block
