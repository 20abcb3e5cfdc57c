"""A block in another codec's form: natively and through the codecs the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdover.codecs.base import get_codec, kv_choice
from holdover.kernels._centre import Centre, Centres, turn_table
from holdover.kernels._transcoding import centres_of, transcoder
from holdover.kernels.native.availability import ISA_VARIABLE, extension
from holdover.kernels.reference.views import PlaneView
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window
from holdover.spec.sparse import BOUNDS, Sparse

BUILT = extension()
ISAS = [] if BUILT is None else BUILT.isas()
HEADS, BLOCK_TOKENS, N_LAYERS = 2, 16, 3
FORMS = [
    ("fp32", "int4"), ("fp32", "bf16"), ("bf16", "int8"), ("bf16", "int4"), ("int8", "int4"),
    ("fp16", "q8_0"), ("bf16", "q5_1"), ("fp8", "int4"), ("int4,0=bf16", "int4"),
    ("k=int4,v=bf16", "k=q4_0,v=int4"),
]  # fmt: skip


def layout_of(kv: str, dim: int) -> CacheLayout:
    layers = tuple(
        LayerSpec(attention_planes(HEADS, dim), Full() if layer else Window(64))
        for layer in range(N_LAYERS)
    )
    return CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), kv_choice(kv))


def some_centres(dim: int, reach_tokens: int = 256) -> Centres:
    generator = torch.Generator().manual_seed(dim)
    turns = 1 / 10_000 ** (torch.arange(dim // 2) / (dim // 2))
    table = turn_table(turns, (reach_tokens // 128, dim, 8))
    return {
        layer: Centre(
            torch.stack(
                (
                    3 * torch.randn(HEADS, dim, generator=generator),
                    torch.rand(HEADS, dim, generator=generator) + 0.5,
                )
            ),
            table,
        )
        for layer in range(N_LAYERS)
    }


def rows_in(
    layout: CacheLayout, group: int, block: bytearray
) -> dict[tuple[int, str], torch.Tensor]:
    held, found = torch.frombuffer(block, dtype=torch.uint8), {}
    for layer in layout.blocks[group].group.layers:
        for plane in layout.blocks[group].group.planes:
            rows = torch.empty(1, BLOCK_TOKENS, plane.heads, plane.dim)
            view = PlaneView.of(held, layout, group, layer, plane.name)
            view.read(torch.zeros(1, dtype=torch.int64), rows)
            found[layer, plane.name] = rows[0]
    return found


def fill(layout: CacheLayout, group: int, centres: Centres, start: int) -> bytearray:
    """A block of random rows, some of them strange, keys with what all have in common."""
    block = bytearray(layout.blocks[group].nbytes)
    held = torch.frombuffer(block, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(group)
    tokens = torch.arange(BLOCK_TOKENS)
    own = centres_of(layout, centres)
    for layer in layout.blocks[group].group.layers:
        for plane in layout.blocks[group].group.planes:
            rows = torch.randn(BLOCK_TOKENS, plane.heads, plane.dim, generator=generator)
            if plane.name == "k":
                rows = rows + centres[layer]._at(start + tokens)
            rows[3], rows[4], rows[5, 0] = 0.0, rows[4] * 1e-3, rows[5, 0] * 1e4
            if plane.name == "k" and layer in own:
                rows = own[layer].stored(rows, start + tokens)
            view = PlaneView.of(held, layout, group, layer, plane.name)
            view.write(torch.zeros_like(tokens), tokens, rows)
    return block


@pytest.mark.skipif(BUILT is None, reason="the native kernels are not built")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [64, 72, 96])
@pytest.mark.parametrize(("kv", "stored"), FORMS)
def test_natively_as_through_the_codecs(
    kv: str, stored: str, dim: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "q" in kv + stored and dim % 32:
        return
    monkeypatch.setenv(ISA_VARIABLE, isa)
    layout, other, centres = layout_of(kv, dim), layout_of(stored, dim), some_centres(dim)
    given = layout, centres_of(layout, centres), other, centres_of(other, centres)
    fast, slow = transcoder(*given), transcoder(*given, reference=True)
    for group in range(2):
        for start in (32, 250 - BLOCK_TOKENS // 2):  # the last one past what the centres reach
            block = fill(layout, group, centres, 32)
            n_stored, n_own = other.blocks[group].nbytes, layout.blocks[group].nbytes
            stored_blocks = bytearray(n_stored), bytearray(n_stored)
            back = bytearray(n_own), bytearray(n_own)
            for coder, down, up in zip((fast, slow), stored_blocks, back, strict=True):
                coder.encode(group, start, memoryview(block), memoryview(down))
                coder.decode(group, start, memoryview(down), memoryview(up))
            assert stored_blocks[0] == stored_blocks[1]
            assert back[0] == back[1]


@pytest.mark.parametrize("kv", ["fp32", "bf16", "int8"])
def test_what_comes_back_is_as_close_as_the_codec_keeps_it(kv: str) -> None:
    """Keys in int4 are closer for being stored less their centre: they meet it on the way."""
    layout, other, centres = layout_of(kv, 64), layout_of("int4", 64), some_centres(64)
    bound = 0.12  # of 4.5 bits, of rows turned
    for group, start in ((0, 0), (1, 112)):
        block = fill(layout, group, centres, start)
        rows = rows_in(layout, group, block)
        errors = {}
        for name, of in (("centred", centres_of(other, centres)), ("plain", {})):
            coder = transcoder(layout, {}, other, of)
            down, up = bytearray(other.blocks[group].nbytes), bytearray(len(block))
            coder.encode(group, start, memoryview(block), memoryview(down))
            coder.decode(group, start, memoryview(down), memoryview(up))
            for at, found in rows_in(layout, group, up).items():
                usual = slice(6, None)
                error = (found - rows[at])[usual].square().mean().sqrt()
                errors[name, at[1]] = float(error)
        assert errors["centred", "v"] == errors["plain", "v"] < bound
        assert errors["centred", "k"] < 0.6 * errors["plain", "k"]


def test_again_and_again_is_hardly_worse_than_once() -> None:
    """A block may come back, go down anew and come back: what it loses, it loses the first time."""
    layout, other = layout_of("bf16", 64), layout_of("int4", 64)
    coder = transcoder(layout, {}, other, {})
    block = fill(layout, 1, some_centres(64), 0)
    rows, errors = rows_in(layout, 1, block)[1, "v"], []
    for _ in range(8):
        down = bytearray(other.blocks[1].nbytes)
        coder.encode(1, 0, memoryview(block), memoryview(down))
        coder.decode(1, 0, memoryview(down), memoryview(block))
        found = rows_in(layout, 1, block)[1, "v"]
        errors.append(float((found - rows)[6:].square().mean().sqrt()))
    assert errors[-1] < 1.25 * errors[0], errors


def test_equal_fields_are_copied() -> None:
    layout, other = layout_of("int4,0=bf16", 64), layout_of("int4", 64)
    coder, centres = transcoder(layout, {}, other, {}), some_centres(64)
    block = fill(layout, 1, centres, 16)
    down = bytearray(other.blocks[1].nbytes)
    coder.encode(1, 16, memoryview(block), memoryview(down))
    assert np.array_equal(np.frombuffer(block, np.uint8), np.frombuffer(down, np.uint8))
    assert get_codec("int4").centres_keys


@pytest.mark.parametrize("reference", [False, True])
def test_bounds_go_down_and_come_up_as_they_are(reference: bool) -> None:
    layers = (LayerSpec(attention_planes(HEADS, 64), Full()),)
    spec = CacheSpec.of(layers, BLOCK_TOKENS, Sparse(4, dense_layers=0))
    own, stored = (CacheLayout.of(spec, kv_choice(kv)) for kv in ("bf16", "int4"))
    coder = transcoder(own, {}, stored, {}, reference=reference)
    block, back = fill(own, 0, some_centres(64), 0), bytearray(own.blocks[0].nbytes)
    [placed] = own.blocks[0].fields_of(0, BOUNDS)
    bounds = slice(placed.offset, placed.offset + placed.field.nbytes)
    block[bounds] = np.random.default_rng(1).bytes(placed.field.nbytes)
    denser = bytearray(stored.blocks[0].nbytes)
    coder.encode(0, 0, memoryview(block), memoryview(denser))
    coder.decode(0, 0, memoryview(denser), memoryview(back))
    assert back[bounds] == block[bounds]
