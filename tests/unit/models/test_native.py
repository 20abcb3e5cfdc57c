"""The native decoder against the torch one, and against itself bit for bit.

Tolerances, of the largest logit: 1e-5 against torch on the weights as they are stored. Where bf16
weights meet inputs in the CPU's own bf16 products, those are rounded to bf16 too: 3e-2. int8
weights meet inputs of 15 bits: 2e-3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from holdover.engine.watch import RowWatch
from holdover.geometry.base import Geometry, expected_tensors, read_geometry
from holdover.kernels.native.availability import ISA_VARIABLE, extension
from holdover.models._blueprint import Blueprint, refusal
from holdover.models._native import NativeDecoder, load_native, load_weights, with_weights
from holdover.models.base import load_model
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits
from holdover.units import round_up
from holdover.weights import Checkpoint, open_checkpoint
from holdover.weights.base import TensorInfo

from .conftest import VARIANTS, PagedCache, step_through
from .random_decoders import check_random
from .test_against_transformers import TURNS, difference, make_prompts

pytestmark = pytest.mark.skipif(extension() is None, reason="the native kernels are not built")

TOLERANCE = {"fp32": 1e-5, "bf16": 1e-5, "int8": 2e-3}
LIMITS = Limits(64, 64, 256, 1)
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")


@dataclass
class Rounded:
    """A checkpoint whose matrices are rounded as they are stored."""

    inner: Checkpoint
    element: str

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.inner.tensors

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        weight = self.inner.load(name, torch.float32)
        if self.element == "bf16":
            weight = weight.bfloat16().float() if weight.dim() == 2 else weight
        elif self.element == "int8" and weight.dim() == 2:
            scale = weight.abs().amax(1, keepdim=True) / 127
            weight = (weight / scale).round() * scale
        return weight.to(dtype)


def native_checkpoint(saved: Any, variant: str, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """The variant with heads as wide as the kernels take them."""
    kind, changes = VARIANTS[variant]
    if "head_dim" in changes:
        wide = changes | {"head_dim": round_up(changes["head_dim"], 8)}
        monkeypatch.setitem(VARIANTS, f"{variant}_wide", (kind, wide))
        variant = f"{variant}_wide"
    return open_checkpoint(saved(variant)[0])


TORCH_ONLY = ("deepseek", "gpt_oss")


@pytest.fixture(params=[name for name in VARIANTS if not name.startswith(TORCH_ONLY)])
def variant(request: pytest.FixtureRequest) -> str:
    """Those whose step it computes: latents and experts are torch's."""
    return str(request.param)


@pytest.fixture
def checkpoint(saved: Any, variant: str, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    return native_checkpoint(saved, variant, monkeypatch)


@pytest.fixture
def tiny(saved: Any, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """With two groups of layers, q/k norms, post-norms and two ropes."""
    return native_checkpoint(saved, "gemma3_text", monkeypatch)


def drawn(checkpoint: Checkpoint, element: str) -> Blueprint:
    return Blueprint.of(extension(), read_geometry(checkpoint.config), element)


def load(checkpoint: Checkpoint, element: str, limits: Limits = LIMITS) -> NativeDecoder:
    return load_native(checkpoint, drawn(checkpoint, element), DType.FP32, limits)


def logits_of(
    model: Any, turns: Any, codec: str = "fp32", prompts: list[Tensor] | None = None
) -> list[Tensor]:
    cache = PagedCache(model.geometry, codec, backend="native", model=model)
    return step_through(model, cache, prompts or make_prompts(), turns)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param not in extension().isas():
        pytest.skip(f"{request.param} does not run here")
    monkeypatch.setenv(ISA_VARIABLE, request.param)
    name: str = request.param
    return name


def test_latents_experts_and_learned_sinks_are_refused(saved: Any) -> None:
    lite = read_geometry(open_checkpoint(saved("deepseek_v2_lite")[0]).config)
    assert refusal(lite) == "it takes keys and values, not latents"
    assert refusal(replace(lite, latent=None)) == "it takes one MLP a layer, not experts"
    oss = read_geometry(open_checkpoint(saved("gpt_oss")[0]).config)
    assert refusal(oss) == "it takes one MLP a layer, not experts"
    assert refusal(replace(oss, experts=None)) == "it takes no learned sinks"


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_it_computes_what_torch_does(checkpoint: Checkpoint, element: str, isa: str) -> None:
    geometry = read_geometry(checkpoint.config)
    assert refusal(geometry) is None
    rounded: Any = Rounded(checkpoint, element)
    expected = logits_of(load_model(rounded, geometry, DType.FP32), TURNS["chunks"])
    actual = logits_of(load(checkpoint, element), TURNS["chunks"])
    tolerance = TOLERANCE[element]
    if element == "bf16" and extension().rounds_rows(isa):  # as torch does, which rounds more
        in_bf16 = logits_of(load_model(rounded, geometry, DType.BF16), TURNS["chunks"])
        tolerance = difference(torch.cat(in_bf16), torch.cat(expected))
    assert difference(torch.cat(actual), torch.cat(expected)) < tolerance


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
def test_no_bit_depends_on_batch_cut_or_threads(
    tiny: Checkpoint, element: str, codec: str, isa: str
) -> None:
    """Promised of hit and cold, of alone and batched: logits of every token, compared exactly."""
    model = load(tiny, element)
    prompts = make_prompts()
    alone = [logits_of(model, [[(0, len(p))]], codec, [p])[0] for p in prompts]
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for turns in ("one step", "chunks", "decode"):
            for found, whole in zip(logits_of(model, TURNS[turns], codec), alone, strict=True):
                assert torch.equal(found, whole[: len(found)])


def test_a_far_position_is_turned_as_in_torch(tiny: Checkpoint) -> None:
    model = load(tiny, "fp32")
    torch_model = load_model(tiny, model.geometry, DType.FP32)
    tokens = make_prompts()[0]
    found = []
    for each in (model, torch_model):
        cache = PagedCache(model.geometry, backend="native")
        step = cache.begin([(0, 37)], {0: 0})
        found.append(each.forward(tokens, torch.arange(37) * 2703, step, torch.arange(37)).clone())
    assert difference(*found) < 1e-5
    cache = PagedCache(model.geometry, backend="native")
    near = model.forward(tokens, torch.arange(37), cache.begin([(0, 37)], {0: 0}), torch.arange(37))
    assert difference(near, found[1]) > 1e-2, "positions matter here"


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_a_token_that_is_not_finite_is_named_and_hurts_no_other(
    tiny: Checkpoint, element: str
) -> None:
    prompts = make_prompts()
    healthy = logits_of(load(tiny, element), TURNS["one step"])
    poisoned = int(next(t for t in prompts[1] if t not in prompts[0] and t not in prompts[2]))
    damaged = Poisoned(tiny, poisoned)
    model = load(damaged, element)  # type: ignore[arg-type]
    cache = PagedCache(model.geometry, backend="native")
    step = RowWatch(cache.layout).over(
        cache.begin(TURNS["one step"][0], dict.fromkeys(range(3), 0))
    )
    ids = torch.cat(prompts)
    positions = torch.cat([torch.arange(len(p)) for p in prompts])
    logits = model.forward(ids, positions, step, torch.arange(len(ids)))
    assert step.damaged(torch.tensor([0, 37, 58, 63]).numpy()) == [1]
    for found, expected in zip(logits.split([37, 21, 5])[::2], healthy[::2], strict=True):
        # The poisoned token's own logit apart, where the head is the embedding.
        found, expected = found.clone(), expected.clone()
        found[:, poisoned] = expected[:, poisoned] = 0
        assert torch.equal(found, expected)


@dataclass
class Poisoned:
    """A checkpoint with NaN in one token's embedding."""

    inner: Checkpoint
    token: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        weight = self.inner.load(name, dtype)
        if name == "model.embed_tokens.weight":
            weight = weight.clone()
            weight[self.token] = torch.nan
        return weight


def test_what_fp16_would_store_as_infinity_is_named(tiny: Checkpoint) -> None:
    @dataclass
    class Loud(Poisoned):
        """Values of one layer are large, and those of no later one."""

        def load(self, name: str, dtype: torch.dtype) -> Tensor:
            weight = self.inner.load(name, dtype)
            return weight * 1e5 if name == "model.layers.0.self_attn.v_proj.weight" else weight

    model = load(Loud(tiny, 0), "fp32")  # type: ignore[arg-type]
    for codec, named in (("fp16", [0]), ("bf16", [])):
        cache = PagedCache(model.geometry, codec, backend="native")
        step = RowWatch(cache.layout).over(cache.begin([(0, 5)], {0: 0}))
        model.forward(make_prompts()[2], torch.arange(5), step, torch.tensor([4]))
        assert list(step.damaged(torch.tensor([0, 5]).numpy())) == named


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_every_tensor_has_one_place_and_parts_do_not_overlap(
    checkpoint: Checkpoint, element: str
) -> None:
    blueprint = drawn(checkpoint, element)
    sources = [name for part in blueprint.parts.values() for name in part.sources]
    assert sorted(sources) == sorted(expected_tensors(blueprint.geometry))
    end = 0
    for part in blueprint.parts.values():
        assert part.offset >= end
        assert part.offset % 64 == 0
        end = part.offset + part.nbytes
    assert 0 <= blueprint.nbytes - end < 64
    assert load_weights(checkpoint, blueprint).nbytes == blueprint.nbytes


def test_a_matrix_takes_its_elements_and_its_padding(tiny: Checkpoint) -> None:
    """42 inputs of 42-wide rows; 97 outputs in 7 panels of 16."""
    for element, item_bytes, scales in (("fp32", 4, 0), ("bf16", 2, 0), ("int8", 1, 7 * 16 * 4)):
        head = drawn(tiny, element).parts["head"]
        assert (head.outputs, head.inputs) == (97, 42)
        panel_bytes = round_up(42 * 16 * item_bytes, 64)
        assert head.nbytes == 7 * panel_bytes + scales


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Allocations of exactly what was asked for, between bytes that must not change."""
    rooms: list[Tensor] = []

    def host_bytes(nbytes: int, what: str, remedy: str = "") -> Tensor:
        rooms.append(torch.full((nbytes + 8192,), 0xA5, dtype=torch.uint8))
        start = 4096 + -rooms[-1].data_ptr() % 64
        rooms[-1][start : start + nbytes] = 0xFF  # NaN, until it is written
        rooms[-1] = rooms[-1][start - 2048 : start + nbytes + 2048]
        return rooms[-1][2048:-2048]

    monkeypatch.setattr("holdover.models._native.host_bytes", host_bytes)
    yield rooms
    for room in rooms:
        assert (room[:2048] == 0xA5).all()
        assert (room[-2048:] == 0xA5).all()


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_the_largest_step_stays_within_its_buffers(
    checkpoint: Checkpoint, element: str, guarded: list[Tensor]
) -> None:
    limits = Limits(3, 63, 256, 1)
    model = load(checkpoint, element, limits)
    cache = PagedCache(model.geometry, backend="native")
    prompts = make_prompts()
    step = cache.begin(TURNS["one step"][0], dict.fromkeys(range(3), 0))
    positions = torch.cat([torch.arange(len(p)) for p in prompts])
    logits = model.forward(torch.cat(prompts), positions, step, torch.tensor([36, 57, 62]))
    assert logits.isfinite().all()
    assert [len(room) - 4096 for room in guarded] == [model.weights_nbytes, model.buffers_nbytes]


def test_a_step_beyond_the_limits_is_refused(tiny: Checkpoint) -> None:
    model = load(tiny, "fp32", Limits(2, 8, 256, 1))
    cache = PagedCache(model.geometry, backend="native")
    with pytest.raises(ValueError, match="larger than the buffers"):
        model.forward(
            torch.arange(9), torch.arange(9), cache.begin([(0, 9)], {0: 0}), torch.tensor([8])
        )


def test_one_set_of_weights_serves_under_other_limits(tiny: Checkpoint) -> None:
    blueprint = drawn(tiny, "bf16")
    weights = load_weights(tiny, blueprint)
    small, large = (
        with_weights(weights, blueprint, DType.BF16, limits)
        for limits in (Limits(8, 8, 256, 1), LIMITS)
    )
    prompts = make_prompts()[2:]
    few, many = (logits_of(model, [[(0, 5)]], prompts=prompts)[0] for model in (small, large))
    assert torch.equal(few, many)
    assert small.buffers_nbytes < large.buffers_nbytes


def test_models_that_it_does_not_compute_are_refused_with_a_reason(tiny: Checkpoint) -> None:
    geometry: Geometry = read_geometry(tiny.config)
    shared = replace(geometry.layers[1], shares_with=0)
    layers = (geometry.layers[0], shared, *geometry.layers[2:])
    assert "store" in str(refusal(replace(geometry, layers=layers)))
    rope = replace(geometry.ropes[0], dim=8)
    assert "turns" in str(refusal(replace(geometry, ropes=(rope, geometry.ropes[1]))))


@pytest.mark.parametrize("seed", range(20))
def test_random_shapes(seed: int, isa: str) -> None:
    check_random(Random(seed))
