"""The centres of keys: what they are in the plainest form, and that each decoder finds the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from holdover.engine.planning import centre_layout
from holdover.geometry.base import read_geometry
from holdover.kernels._centre import Centre, Centres, turn_table
from holdover.kernels.native.availability import extension
from holdover.models import _rope
from holdover.models._blueprint import Blueprint
from holdover.models._centring import digest, find_centres, nbytes
from holdover.models._native import load_native
from holdover.models.base import Model, load_model
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits
from holdover.weights import Checkpoint, open_checkpoint

from .conftest import PagedCache, step_through
from .test_native import native_checkpoint

LIMITS = Limits(4, 64, 256, 1)
TOKENS = [(7 * i * i + 3 * i) % 90 for i in range(200)]


def found(model: Model, tokens: list[int] = TOKENS, limits: Limits = LIMITS) -> Centres:
    cache = PagedCache(model.geometry, "int4")
    shapes = centre_layout(cache.layout, model.geometry, limits)
    centres = find_centres(model, cache.kernels, shapes, cache.layout.spec, limits, tokens)
    assert nbytes(centres) == shapes.nbytes > 0
    assert set(centres) == set(range(len(model.geometry.layers)))
    return centres


@pytest.fixture
def gemma(saved: Any, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Window layers with another rope, q/k norms."""
    return native_checkpoint(saved, "gemma3_text", monkeypatch)


@dataclass
class Biased:
    """A checkpoint whose keys have a large mean in dims that turn slowly."""

    inner: Checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        weight = self.inner.load(name, dtype)
        slow = torch.tensor([0, 0, 1, 1] * 2)  # of a head's 8 dims, in the order of pairs
        return weight * 15 * slow.repeat(2) if name.endswith("k_proj.bias") else weight


def test_a_centre_is_the_average_of_the_turned_mean() -> None:
    turns = 3.0 ** -torch.arange(4).double()
    mean = torch.randn(2, 8)
    spread = torch.rand(2, 8) + 0.5
    centre = Centre(torch.stack((mean, spread)), turn_table(turns.float(), (3, 8, 8)))
    for position in (0, 15, 16, 130, 383):
        want = torch.zeros(2, 8).double()
        for token in range(position // 16 * 16, position // 16 * 16 + 16):
            for i in range(4):
                cosine, sine = math.cos(token * turns[i]), math.sin(token * turns[i])
                want[:, i] += (mean[:, i] * cosine - mean[:, i + 4] * sine) / 16
                want[:, i + 4] += (mean[:, i + 4] * cosine + mean[:, i] * sine) / 16
        key = torch.randn(1, 2, 8)
        stored = centre.stored(key, torch.tensor([position]))
        torch.testing.assert_close(
            stored[0], ((key[0] - want) / spread).float(), atol=1e-5, rtol=1e-5
        )
        centre.restore(stored, torch.tensor([position]))
        torch.testing.assert_close(stored, key, atol=1e-5, rtol=1e-5)


def test_means_and_spreads_are_those_of_keys_before_they_are_turned(gemma: Checkpoint) -> None:
    """Against keys and queries that a contiguous cache saw, in the plainest form."""
    geometry = read_geometry(gemma.config)
    model = load_model(gemma, geometry, DType.FP32)
    seen: dict[tuple[int, str], Tensor] = {}

    class Seeing:
        def __init__(self, step: Any) -> None:
            self.step = step

        def write(self, layer: int, rows: Any) -> None:
            seen[layer, "k"] = rows["k"].clone()
            self.step.write(layer, rows)

        def attend(self, layer: int, query: Tensor, *rest: Any, **more: Any) -> Tensor:
            seen[layer, "q"] = query.clone()
            result: Tensor = self.step.attend(layer, query, *rest, **more)
            return result

    cache = PagedCache(geometry, "fp32")
    step: Any = Seeing(cache.begin([(0, len(TOKENS))], {0: 0}))
    positions = torch.arange(len(TOKENS))
    model.forward(torch.tensor(TOKENS), positions, step, positions[-1:])
    for layer, centre in found(model).items():
        turns = _rope.frequencies(geometry.ropes[geometry.layer_ropes[layer]]).double()
        turned = {}
        for name in "kq":
            a, b = seen[layer, name].double().chunk(2, -1)
            angle = -positions[:, None, None] * turns
            turned[name] = torch.complex(a, b) * torch.exp(1j * angle)
        mean = turned["k"].mean(0)
        torch.testing.assert_close(
            centre.rows[0], torch.cat((mean.real, mean.imag), -1).float(), atol=1e-4, rtol=1e-4
        )
        deviations = [
            part.var(0, correction=0).sqrt() for part in (turned["k"].real, turned["k"].imag)
        ]
        shared = turned["q"].unflatten(1, (geometry.kv_heads, -1))
        sizes = [part.square().mean((0, 2)).sqrt() for part in (shared.real, shared.imag)]
        spread = (deviations[0] * deviations[1] / sizes[0] / sizes[1]) ** 0.25
        spread = spread / spread.log().mean(-1, keepdim=True).exp()
        torch.testing.assert_close(
            centre.rows[1], torch.cat((spread, spread), -1).float(), atol=1e-3, rtol=1e-3
        )


@pytest.mark.skipif(extension() is None, reason="the native kernels are not built")
def test_the_native_decoder_finds_what_torch_does(gemma: Checkpoint) -> None:
    geometry = read_geometry(gemma.config)
    want = found(load_model(gemma, geometry, DType.FP32))
    blueprint = Blueprint.of(extension(), geometry, "fp32")  # type: ignore[arg-type]
    models = [
        load_native(gemma, blueprint, DType.FP32, limits)
        for limits in (LIMITS, Limits(2, 7, 256, 1))
    ]
    whole, cut = found(models[0]), found(models[1], limits=Limits(2, 7, 256, 1))
    for layer, centre in want.items():
        torch.testing.assert_close(whole[layer].rows, centre.rows, atol=1e-3, rtol=1e-3)
    assert digest(whole) == digest(found(models[0])) != digest(found(models[0], TOKENS[:100]))
    for layer in whole:  # moments of a step are added up, so the cut shows in the last bits alone
        torch.testing.assert_close(whole[layer].rows, cut[layer].rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_keys_with_a_mean_are_stored_better(saved: Any, backend: str) -> None:
    """Against exact keys, int4 with and without centres."""
    if backend == "native" and extension() is None:
        pytest.skip("the native kernels are not built")
    checkpoint: Any = Biased(open_checkpoint(saved("qwen2_bias")[0]))
    model = load_model(checkpoint, read_geometry(checkpoint.config), DType.FP32)
    prompt, turns = torch.tensor(TOKENS[:100]), [[(0, 60)], [(0, 1)], [(0, 39)]]

    def logits(codec: str, centred: bool) -> Tensor:
        cache = PagedCache(
            model.geometry, codec, 16, backend=backend, model=model if centred else None
        )
        [rows] = step_through(model, cache, [prompt], turns)
        return rows

    exact = logits("fp32", False)
    plain, centred = (
        (logits("k=int4,v=fp32", with_centres) - exact).square().mean().sqrt()
        for with_centres in (False, True)
    )
    assert centred < 0.5 * plain
