"""What loading refuses, and how little it holds beside the model."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.geometry.base import read_geometry
from holdover.models.base import load_model
from holdover.spec.dtypes import DType
from holdover.weights import Checkpoint, open_checkpoint
from holdover.weights.base import TensorInfo

from .conftest import ContiguousCache, step_through


@pytest.fixture
def checkpoint(saved: Any) -> Checkpoint:
    return open_checkpoint(saved("llama3_gqa")[0])


def test_shape_that_disagrees_with_the_config(checkpoint: Checkpoint) -> None:
    geometry = read_geometry(checkpoint.config)
    with pytest.raises(ModelFileError, match=r"model.embed_tokens.weight.*\[97, 48\].*\[98, 48\]"):
        load_model(checkpoint, replace(geometry, vocab_size=98), DType.FP32)


def test_missing_tensor(checkpoint: Checkpoint) -> None:
    geometry = read_geometry(checkpoint.config)
    with pytest.raises(ModelFileError, match=r"layers.0.self_attn.q_norm.weight is missing"):
        load_model(checkpoint, replace(geometry, qk_norm=True), DType.FP32)


def test_family_that_can_only_be_sized(checkpoint: Checkpoint) -> None:
    geometry = replace(read_geometry(checkpoint.config), family="mamba", architecture="Mamba")
    with pytest.raises(UnsupportedModelError, match=r"Mamba can be sized.*gemma3, gpt_oss, llama"):
        load_model(checkpoint, geometry, DType.FP32)


def test_a_model_outlives_its_file(saved: Any, tmp_path: Any) -> None:
    """Weights that were views of a mapped file would change, or fault, with it."""
    path = tmp_path / "model.safetensors"
    for source in saved("llama3_gqa")[0].iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    copied = open_checkpoint(tmp_path)
    model = load_model(copied, read_geometry(copied.config), DType.FP32)

    def logits() -> Tensor:
        cache = ContiguousCache(model.geometry)
        return step_through(model, cache, [torch.arange(20)], [[(0, 20)]])[0]

    before = logits()
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert torch.equal(logits(), before)


@dataclass
class Watched:
    """A checkpoint that counts the bytes it handed out and that are still alive."""

    inner: Checkpoint
    live: int = 0
    peak: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def path(self) -> Any:
        return self.inner.path

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.inner.tensors

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self.inner.load(name, dtype).clone()
        weakref.finalize(tensor, self._count, -tensor.nbytes)
        self._count(tensor.nbytes)
        return tensor

    def _count(self, nbytes: int) -> None:
        with self.lock:
            self.live += nbytes
            self.peak = max(self.peak, self.live)


def test_parts_are_let_go_one_by_one(checkpoint: Checkpoint) -> None:
    """The file is fp32 here, so every part is copied: what lives beside the model is parts only."""
    watched = Watched(checkpoint)
    model = load_model(watched, read_geometry(checkpoint.config), DType.FP32)  # type: ignore[arg-type]
    gc.collect()
    largest = max(info.n_elements * 4 for info in checkpoint.tensors.values())
    assert watched.live == 0
    assert watched.peak <= 3 * largest < model.weights_nbytes / 4
