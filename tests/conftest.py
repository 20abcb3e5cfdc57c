"""Real models for every test, found through the packages that carry them."""

from __future__ import annotations

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
