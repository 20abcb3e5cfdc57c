"""Real models for every test, found through the packages that carry them; compute threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdover.weights import locate_model


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return locate_model("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M (K-quants, sliding windows, no chat template)."""
    return locate_model("gemma3-270m")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: one compute thread is fastest."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
