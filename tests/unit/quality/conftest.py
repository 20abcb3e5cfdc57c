"""A tiny model with windows and without, whose tokenizer knows the probe's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from holdover.quality.recall import _NAMES, _VALUES
from holdover.weights import Checkpoint, open_checkpoint


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Small tensors: one compute thread is fastest."""


def tokenizer_json() -> str:
    """Bytes, and every word of the probe as one token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken("<eos>", special=True)])
    words = [*_NAMES.split(), *_VALUES.split(), "code word of", "is"]
    made.add_tokens([tokenizers.AddedToken(f" {word}", normalized=False) for word in words])
    return str(made.to_str())


def saved(folder: Path, model: torch.nn.Module) -> Checkpoint:
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return open_checkpoint(folder)


SIZES: dict[str, Any] = {
    "vocab_size": 400, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "bos_token_id": None, "eos_token_id": 256, "pad_token_id": None, "initializer_range": 0.2,
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two layers of random Llama."""
    torch.manual_seed(1)
    return saved(tmp_path_factory.mktemp("tiny"), LlamaForCausalLM(LlamaConfig(**SIZES)))


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The same with a window of 64 tokens."""
    torch.manual_seed(1)
    config = MistralConfig(**SIZES, sliding_window=64)
    return saved(tmp_path_factory.mktemp("windowed"), MistralForCausalLM(config))
