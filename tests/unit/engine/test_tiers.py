"""Conversations that do not fit in the arena, with tiers below it: every answer as if they did."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from .conftest import GREEDY, Loaded, Serve, Served, byte_tokenizer_json

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
    (folder / "tokenizer.json").write_text(byte_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return Loaded.of(folder)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("model", ["tiny", "windowed"])
def test_what_the_arena_lost_comes_back_from_ram(
    request: pytest.FixtureRequest, serve: Serve, model: str, codec: str
) -> None:
    loaded = request.getfixturevalue(model)
    arena_bytes = ARENA_BYTES // (1 if codec == "fp32" else 2)
    roomy = serve(loaded, 8 << 20, codec=codec)
    tight = serve(loaded, arena_bytes, codec=codec, tiers=["ram:8MiB"])
    assert turns(tight, 3) == turns(roomy, 3)
    stats = tight.engine.stats()
    assert stats.evicted_blocks > 0
    assert stats.tiers["ram"].loaded_blocks > 0
    assert stats.cached_tokens == roomy.engine.stats().cached_tokens
