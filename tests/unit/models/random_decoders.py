"""Native decoders of random shapes against torch, for the run under the sanitizers.

Weights and buffers come from the allocator that the sanitizers watch, each of exactly its size.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from torch import Tensor

from holdover.geometry.base import expected_tensors, read_geometry
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.kernels.native.availability import extension
from holdover.models._blueprint import Blueprint
from holdover.models._native import load_native
from holdover.models.base import load_model
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits
from holdover.weights.base import TensorInfo

from .conftest import PagedCache, step_through


@dataclass
class RandomCheckpoint:
    """The same random values for a name whenever it is asked for, exact in `element`."""

    config: Mapping[str, Any]
    element: str
    path: str = "random"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        shapes = expected_tensors(read_geometry(self.config))
        return {name: TensorInfo(shape, "F32", 0, 0) for name, shape in shapes.items()}

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        shape = self.tensors[name].shape
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(crc32(name.encode())))
        if weight.dim() == 1:
            return weight.mul(0.2).add(1.0).to(dtype)
        weight *= shape[1] ** -0.5
        if self.element == "int8":
            scale = weight.abs().amax(1, keepdim=True) / 127
            weight = (weight / scale).round() * scale
        return weight.bfloat16().to(dtype) if self.element == "bf16" else weight.to(dtype)


def random_config(draw: random.Random) -> dict[str, Any]:
    kv_heads = draw.randint(1, 3)
    model_type = draw.choice(("llama", "qwen2", "qwen3", "gemma3_text"))
    return {
        "model_type": model_type,
        "hidden_size": draw.randint(1, 90),
        "intermediate_size": draw.randint(1, 300),
        "vocab_size": draw.randint(2, 120),
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": kv_heads * draw.randint(1, 4),
        "num_key_value_heads": kv_heads,
        "head_dim": draw.choice((8, 16, 24, 40)),
        "max_position_embeddings": 256,
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
        "final_logit_softcapping": draw.choice((None, 3.0)),
        **({"sliding_window": 9} if model_type == "gemma3_text" else {}),
    }


def check_random(draw: random.Random) -> None:
    """One decoder, one batch of prompts in random pieces."""
    config, element = random_config(draw), draw.choice(("fp32", "bf16", "int8"))
    checkpoint: Any = RandomCheckpoint(config, element)
    geometry = read_geometry(config)
    if draw.random() < 0.3 and config["model_type"] != "gemma3_text":  # which has windows alone
        geometry = with_window(geometry, ImposedWindow(draw.randint(1, 12), draw.randint(0, 9)))
    lengths = [draw.randint(1, 30) for _ in range(draw.randint(1, 4))]
    prompts = [torch.randint(0, geometry.vocab_size, (n,)) for n in lengths]
    cuts = [draw.randint(0, n) for n in lengths]
    turns = [[(s, n) for s, n in enumerate(cuts) if n]]
    turns.append([(s, n - cuts[s]) for s, n in enumerate(lengths) if n > cuts[s]])
    turns = [turn for turn in turns if turn]
    most = max(sum(n for _, n in turn) for turn in turns)
    limits = Limits(most, most, 256, torch.get_num_threads())
    codec = draw.choice(("fp32", "bf16"))
    native: Any = extension()
    with patch("holdover.models._native.host_bytes", _watched_bytes):
        blueprint = Blueprint.of(native, geometry, element)
        model = load_native(checkpoint, blueprint, DType.FP32, limits)
    oracle = load_model(checkpoint, geometry, DType.FP32)
    found, expected = (
        torch.cat(step_through(m, PagedCache(geometry, codec, backend="native"), prompts, turns))
        for m in (model, oracle)
    )
    worst = float((found - expected).abs().max() / expected.abs().max())
    assert worst < 2e-2, (worst, config, element, lengths, codec)


def _watched_bytes(nbytes: int, what: str, remedy: str = "") -> Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)
