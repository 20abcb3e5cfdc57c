"""The reference backend's views follow a codec's fields, whatever their element order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs import base
from holdover.kernels.reference.views import PlaneView, block_locator
from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, Plane, attention_planes
from holdover.spec.layout import CacheLayout, Field
from holdover.spec.residency import Full, Window


@dataclass(frozen=True, slots=True)
class Lanes:
    """Tokens in lanes, a scale per token and head, and a constant per block: nothing like raw."""

    name: str = "lanes"
    serves: bool = True
    centres_keys: bool = False
    max_error: float = 2.0**-11
    error_from: float = 2.0**-14

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        pairs = (plane.heads, plane.dim // 2, block_tokens, 2)
        return (
            Field("data", DType.FP16, ("head", "dim_pair", "token", "pair"), pairs),
            Field("scale", DType.FP32, ("token", "head"), (block_tokens, plane.heads)),
            Field("sign", DType.INT8, ("head",), (plane.heads,)),
        )

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]:
        scale = rows.abs().amax(-1)
        data = (-rows / scale[..., None]).half().unflatten(-1, (-1, 2))
        return {"data": data, "scale": scale, "sign": torch.full(rows.shape[:-1], -1).char()}

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor:
        signed = fields["scale"] * fields["sign"]
        return fields["data"].flatten(-2).float() * signed[..., None]


@pytest.mark.parametrize("block_tokens", [1, 3, 16])
def test_rows_come_back_from_any_element_order(
    block_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_codecs", lambda: {"lanes": Lanes()})
    layers = (
        LayerSpec(attention_planes(2, 8), Full()),
        LayerSpec(attention_planes(2, 8), Window(4)),
        LayerSpec(attention_planes(3, 4), Full()),
        LayerSpec(attention_planes(2, 8), Full()),
    )
    layout = CacheLayout.of(CacheSpec.of(layers, block_tokens), base.uniform("lanes"))
    arena = torch.full((5 * layout.sector_bytes,), 0xFF).byte()
    places = [(g.index, layer, p) for g in layout.spec.groups for layer in g.layers for p in "kv"]
    stored = {}
    for group, layer, plane in places:
        # Groups hold sectors of their own: group g the sectors g and g + 3 where there are five.
        per = layout.blocks_per_sector[group]
        sectors = [s for s in range(5) if s % 3 == group]
        numbers = np.concatenate([np.arange(s * per, (s + 1) * per) for s in sectors])
        numbers = np.random.default_rng(layer).permutation(numbers)[:4]
        heads, dim = layers[layer].planes[0].heads, layers[layer].planes[0].dim
        rows = torch.randn(len(numbers), block_tokens, heads, dim)
        view = PlaneView.of(arena, layout, group, layer, plane)
        blocks = block_locator(layout, group)(numbers)
        order = torch.randperm(rows[..., 0, 0].numel())
        at = blocks.repeat_interleave(block_tokens)[order]
        tokens = torch.arange(block_tokens).repeat(len(numbers))[order]
        view.write(at, tokens, rows.flatten(0, 1)[order])
        stored[group, layer, plane] = (view, blocks, rows)
    for view, blocks, rows in stored.values():
        into = torch.full_like(rows, torch.nan)
        view.read(blocks, into)
        largest = rows.abs().amax(-1, keepdim=True)
        assert ((into - rows).abs() <= largest * Lanes().max_error).all()
