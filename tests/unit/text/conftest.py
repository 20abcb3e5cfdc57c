"""Tokenizers of both models: ours, and the `tokenizers` backend that transformers builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from holdover.text import Tokenizer, load_tokenizer
from holdover.weights import open_checkpoint


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_path))


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(gemma3_path))


@pytest.fixture(scope="session", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def _transformers_backend(path: Path) -> tokenizers.Tokenizer:
    architecture, data, _ = get_gguf_tokenizer(str(path))
    backend, _ = convert_gguf_tokenizer(architecture, data)
    return backend


@pytest.fixture(scope="session")
def transformers_smollm2(smollm2_path: Path) -> tokenizers.Tokenizer:
    return _transformers_backend(smollm2_path)


@pytest.fixture(scope="session")
def published_smollm2(smollm2_path: Path) -> tokenizers.Tokenizer:
    """With the pre-tokenizer of the model's published tokenizer.json.

    transformers does not know the GGUF name "smollm" and leaves GPT-2's rule alone, which cuts
    spaces before digits elsewhere; the published rule takes every digit by itself first.
    """
    backend = _transformers_backend(smollm2_path)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return backend


@pytest.fixture(scope="session")
def transformers_gemma3(gemma3_path: Path) -> tokenizers.Tokenizer:
    return _transformers_backend(gemma3_path)
