"""Published models, each held to bytes that were worked out independently of this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdover.geometry.sizing import read_memory
from holdover.plan.sizing.cache import Cache
from holdover.spec.memory import Kind

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "models.json").read_text())
MIB = 2**20


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model["model"]))
def test_bytes_of_a_published_model(model: dict[str, Any]) -> None:
    memories = read_memory(model["config"]).memories
    expected = model["expected"]

    cache = Cache.of(memories, "bf16")
    at = {n: cache.logical_by_kind(n) for n in (8192, 32768, 131072)}
    assert at[32768][Kind.ATTENTION] == expected["attention_bytes"]
    assert at[32768][Kind.INDEXER] == expected["indexer_bytes"]
    # The reference rounds these two to a hundredth of a MiB.
    for n in (8192, 131072):
        expected_bytes = expected[f"attention_mib_{n}"] * MIB
        assert at[n][Kind.ATTENTION] == pytest.approx(expected_bytes, abs=0.005 * MIB + 1)
    states = [m for m in memories if m.kind is Kind.STATE]
    assert sum(m.elements(1) for m in states) == expected["state_elements"]
    cross = [m for m in memories if m.kind is Kind.CROSS]
    per_token = sum(m.row_elements * len(m.layers) for m in cross) * 2
    assert per_token == expected["cross_bytes_per_token"]
    assert at[32768][Kind.CROSS] == sum(per_token * m.rows(1) for m in cross[:1])


def test_the_table_has_every_kind_of_memory() -> None:
    labels = {m.label.split()[0] for model in MODELS for m in read_memory(model["config"]).memories}
    assert labels >= {
        "full", "window", "chunk", "mla", "compressed", "index", "mamba", "mamba2", "gated",
        "kda", "rg-lru", "convolution", "rwkv", "encoder,", "image,",
    }  # fmt: skip
    assert len(MODELS) >= 137
