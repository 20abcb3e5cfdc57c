"""Conversations that do not fit in the arena, with tiers below it: every answer as if they did."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from holdover.geometry.imposed import ImposedWindow, with_window

from .conftest import GREEDY, Loaded, Serve, Served, load_with_bytes

PARAMS = replace(GREEDY, max_tokens=6, ignore_eos=True)
ARENA_BYTES = 1 << 17
N_USERS = 6
TEXT = "Once there was a librarian who counted every page of every book she lent, and the pages "
PROMPTS = [f"{i}: {TEXT * 2}" for i in range(N_USERS)]


def turns(served: Served, n: int = 2) -> list[list[tuple[int, ...]]]:
    """Each user's answers, turn by turn, all users in turn, whole histories resent."""
    histories = [tuple(served.tokenizer.encode(prompt)) for prompt in PROMPTS]
    answers: list[list[tuple[int, ...]]] = [[] for _ in PROMPTS]
    for _ in range(n):
        for user, history in enumerate(histories):
            tokens = tuple(served.ask(history, PARAMS).answer().tokens)
            answers[user].append(tokens)
            histories[user] = (*history, *tokens, *served.tokenizer.encode(" And then?"))
    return answers


def at(tier: str, path: Path) -> str:
    return "ram:8MiB" if tier == "ram" else f"disk:{path}:8MiB"


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Two layers of random Mistral over bytes that see 40 tokens."""
    folder = tmp_path_factory.mktemp("tiny-mistral")
    torch.manual_seed(2)
    config = MistralConfig(
        vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=40,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=256, pad_token_id=None,
        initializer_range=0.2,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(folder)
    return load_with_bytes(folder)


@pytest.fixture
def endless(tiny: Loaded) -> Loaded:
    """The tiny Llama with sinks and an imposed window."""
    geometry = with_window(tiny.model.geometry, ImposedWindow(40, 3))
    model = replace(tiny.model, geometry=geometry)  # type: ignore[type-var]
    return Loaded(tiny.checkpoint, model, tiny.tokenizer)


@pytest.mark.parametrize(
    ("model", "codec"),
    [
        *product(("tiny", "windowed", "latents"), ("fp32", "bf16", "int8", "int4")),
        ("endless", "int4"),
    ],
)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_what_the_arena_lost_comes_back(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, tier: str, model: str, codec: str
) -> None:
    loaded = request.getfixturevalue(model)
    arena_bytes = ARENA_BYTES // (1 if codec == "fp32" else 2)
    roomy = serve(loaded, 8 << 20, codec=codec)
    tight = serve(loaded, arena_bytes, codec=codec, tiers=[at(tier, tmp_path)])
    assert turns(tight, 3) == turns(roomy, 3)
    stats = tight.engine.stats()
    assert stats.evicted_blocks > 0
    assert stats.tiers[tier].loaded_blocks > 0
    assert stats.cached_tokens == roomy.engine.stats().cached_tokens


@pytest.mark.parametrize("model", ["tiny", "windowed", "endless"])
def test_a_restarted_engine_goes_on_where_the_last_one_stopped(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, model: str
) -> None:
    loaded = request.getfixturevalue(model)
    prompt = tuple(loaded.tokenizer.encode(PROMPTS[0]))
    roomy = serve(loaded, 8 << 20)
    first = roomy.ask(prompt, PARAMS).answer()
    history = (*prompt, *first.tokens, *loaded.tokenizer.encode(" And then?"))
    expected = roomy.ask(history, PARAMS).answer()

    tiers = [at("disk", tmp_path)]
    before = serve(loaded, ARENA_BYTES, tiers=tiers)
    assert before.ask(prompt, PARAMS).answer().tokens == first.tokens
    before.engine.shutdown(10)
    after = serve(loaded, ARENA_BYTES, tiers=tiers)
    found = after.ask(history, PARAMS).answer()
    assert found.tokens == expected.tokens
    # the last block, partly filled, is there as well
    assert found.cached_tokens == expected.cached_tokens == len(prompt) + len(first.tokens) - 1
    assert found.usage.reuse is not None
    assert found.usage.reuse.from_tiers == {"arena": 0, "disk": found.cached_tokens}


def test_other_weights_codecs_and_blocks_find_nothing(
    tiny: Loaded, windowed: Loaded, serve: Serve, tmp_path: Path
) -> None:
    tiers = [at("disk", tmp_path)]
    prompt = tuple(tiny.tokenizer.encode(PROMPTS[0]))
    before = serve(tiny, ARENA_BYTES, tiers=tiers)
    before.ask(prompt, PARAMS).answer()
    before.engine.shutdown(10)
    for loaded, change in (
        (windowed, {}), (tiny, {"codec": "bf16"}), (tiny, {"block_tokens": 16}),
    ):  # fmt: skip
        other = serve(loaded, ARENA_BYTES, tiers=tiers, **change)
        assert other.ask(prompt, PARAMS).answer().cached_tokens == 0
        other.engine.shutdown(10)
    same = serve(tiny, ARENA_BYTES, tiers=tiers)
    assert same.ask(prompt, PARAMS).answer().cached_tokens == len(prompt) - 1


def test_other_rope_settings_and_a_flipped_weight_find_nothing(
    tiny: Loaded, serve: Serve, tmp_path: Path
) -> None:
    """Beside weights that are the same to the byte, too."""
    tiers = [at("disk", tmp_path / "kv")]
    prompt = tuple(tiny.tokenizer.encode(PROMPTS[0]))
    before = serve(tiny, ARENA_BYTES, tiers=tiers)
    before.ask(prompt, PARAMS).answer()
    before.engine.shutdown(10)
    for what in ("rope", "weight", "nothing"):
        folder = tmp_path / what
        shutil.copytree(tiny.checkpoint.path, folder)
        config, weights = folder / "config.json", folder / "model.safetensors"
        if what == "rope":
            changed = json.loads(config.read_text())
            rope = changed.get("rope_parameters", changed)
            rope["rope_theta"] = 2 * rope["rope_theta"]
            config.write_text(json.dumps(changed))
        elif what == "weight":
            content = bytearray(weights.read_bytes())
            content[-2] ^= 1
            weights.write_bytes(content)
        other = serve(Loaded.of(folder), ARENA_BYTES, tiers=tiers)
        cached = other.ask(prompt, PARAMS).answer().cached_tokens
        assert cached == (len(prompt) - 1 if what == "nothing" else 0), what
        other.engine.shutdown(10)


def test_tenants_find_nothing_of_each_other_on_a_disk(
    tiny: Loaded, serve: Serve, tmp_path: Path
) -> None:
    tiers = [at("disk", tmp_path)]
    prompt = tuple(tiny.tokenizer.encode(PROMPTS[0]))
    before = serve(tiny, ARENA_BYTES, tiers=tiers)
    before.ask(prompt, PARAMS, tenant="a").answer()
    before.engine.shutdown(10)
    after = serve(tiny, ARENA_BYTES, tiers=tiers)
    assert after.ask(prompt, PARAMS, tenant="b").answer().cached_tokens == 0
    assert after.ask(prompt, PARAMS, tenant="a").answer().cached_tokens == len(prompt) - 1


def fixed_turns(served: Served, n_turns: int) -> list[tuple[int, ...]]:
    """Answers to prompts that do not depend on them: every user's, longer with each turn."""
    found = []
    for turn in range(n_turns):
        for prompt in PROMPTS:
            asked = served.ask(prompt + " And then?" * turn, PARAMS).answer()
            found.append(tuple(asked.tokens))
    return found


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize("model", ["tiny", "windowed"])
def test_what_comes_back_requantised_is_said_and_stays_off_the_disk(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path, model: str, codec: str
) -> None:
    loaded = request.getfixturevalue(model)
    arena_bytes = ARENA_BYTES // (1 if codec == "fp32" else 2)
    tiers = ["ram:8MiB:int4", at("disk", tmp_path)]
    tight = serve(loaded, arena_bytes, codec=codec, tiers=tiers)
    fixed_turns(tight, 3)
    asked = tight.ask(PROMPTS[0] + " And then?" * 3, PARAMS).answer()
    assert asked.usage.reuse is not None
    assert 0 < asked.usage.reuse.requantised_tokens <= asked.cached_tokens
    stats = tight.engine.stats()
    assert stats.tiers["ram"].codec == "int4"
    assert stats.tiers["ram"].loaded_blocks > 0
    assert stats.requantised_tokens > 0
    tight.engine.shutdown(10)

    cold = fixed_turns(serve(loaded, 8 << 20, codec=codec), 3)
    after = serve(loaded, arena_bytes, codec=codec, tiers=tiers[1:])
    assert fixed_turns(after, 3) == cold
    assert after.engine.stats().tiers["disk"].loaded_blocks > 0
