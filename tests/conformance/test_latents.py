"""Every kernel backend over latents and rotary keys: see test_kernels for worlds and tolerances."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from holdover.codecs.base import codec_names

from .test_kernels import (
    BLOCK_TOKENS,
    MIXES,
    RESIDENCIES,
    SOFTCAPS,
    Case,
    backend,
    check,
    poisoned_new_tensors,
)

__all__ = ["backend", "poisoned_new_tensors"]  # fixtures

AXES = ((1, 5, 16, 128), (32, 64, 512), (32, 64), BLOCK_TOKENS, tuple(MIXES), SOFTCAPS)
ROPE_CODECS = (None, "bf16", "int8", "fp32")


def latent_cases() -> list[Case]:
    """Each codec and residency with some of the rest."""
    draw = random.Random(1)
    cases = []
    for at, codec in enumerate(codec_names()):
        for residency in RESIDENCIES[at % 2 :: 2]:
            heads, dim, rope_dim, block_tokens, mix, softcap = map(draw.choice, AXES)
            case = Case(codec, residency, (heads, 1), dim, block_tokens, softcap, mix)
            cases.append(replace(case, rope_dim=rope_dim, rope_codec=draw.choice(ROPE_CODECS)))
    return cases


@pytest.mark.parametrize("case", latent_cases(), ids=str)
def test_latent_attention(backend: str, case: Case) -> None:
    check(backend, case, MIXES[case.mix], layers=[0, 1, 3])


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_latents_of_long_contexts(backend: str, codec: str) -> None:
    """At DeepSeek's dims, past several partial results; two threads."""
    case = Case(codec=codec, heads=(16, 1), head_dim=512, rope_dim=64)
    check(backend, case, ((2300, 1), (1100, 3), (1024, 1), (300, 40), (40, 1)), layers=[0])


@pytest.mark.parametrize("rope_codec", ["bf16", "int4"])
def test_bf16_queries_of_latents(backend: str, rope_codec: str) -> None:
    case = Case(
        codec="bf16", heads=(6, 1), dtype=torch.bfloat16, rope_dim=32, rope_codec=rope_codec
    )
    check(backend, case, MIXES["mixed"])
