"""Which rows count as damaged, by what they are stored as."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs.base import uniform
from holdover.engine.watch import RowWatch
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

N_LAYERS = 3
QUERY_START = np.array([0, 2, 3, 6], dtype=np.int32)


class Nothing:
    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        pass

    def attend(
        self, layer: int, query: Tensor, scale: float, softcap: float = 0.0, **more: Any
    ) -> Tensor:
        return query


def damaged(codec: str, layer: int, row: int, plane: str, value: float) -> list[int]:
    """Of three sequences with rows 0-1, 2, 3-5."""
    spec = CacheSpec.of((LayerSpec(attention_planes(2, 4), Full()),) * N_LAYERS, 8)
    step = RowWatch(CacheLayout.of(spec, uniform(codec))).over(Nothing())
    for i in range(N_LAYERS):
        rows = {name: torch.ones(6, 2, 4) for name in ("k", "v")}
        if i == layer:
            rows[plane][row, 1, 2] = value
        step.write(i, rows)
    return list(step.damaged(QUERY_START))


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("plane", ["k", "v"])
def test_the_sequence_of_the_row_is_named(codec: str, value: float, plane: str) -> None:
    for row, sequence in ((0, 0), (1, 0), (2, 1), (3, 2), (5, 2)):
        assert damaged(codec, N_LAYERS - 1, row, plane, value) == [sequence]
    assert damaged(codec, N_LAYERS - 1, 0, plane, -30_000.0) == []


def test_what_fp16_would_store_as_infinity_counts_in_every_layer() -> None:
    for layer in range(N_LAYERS):
        assert damaged("fp16", layer, 4, "k", -70_000.0) == [2]
        assert damaged("bf16", layer, 4, "k", -70_000.0) == []
