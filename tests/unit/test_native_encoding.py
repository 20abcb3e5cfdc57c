"""What the native kernels write is, byte for byte, what the codec's own `encode` gives.

Rows of every kind: ordinary, tiny, huge, constant, zero, with inf and with NaN in them. NaN has
many bit patterns, of which torch itself uses several: fields that hold NaN are compared as such.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs.base import codec_names, get_codec, kv_choice, uniform
from holdover.kernels import native, reference
from holdover.kernels.base import AttentionBatch
from holdover.kernels.native.availability import ISA_VARIABLE, extension
from holdover.kernels.reference.views import PlaneView, block_locator
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Full

BUILT = extension()
pytestmark = pytest.mark.skipif(BUILT is None, reason="the native kernels are not built")
ISAS = [] if BUILT is None else BUILT.isas()
HEADS, BLOCK_TOKENS = 2, 16


def rows_of_every_kind(dim: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(400, HEADS, dim, generator=generator)
    scales = torch.logspace(-40, 38, 160)[:, None, None]
    rows[100:260] *= scales
    rows[260:280] = rows[260:280, :, :1]  # constant
    rows[280:290] = 0.0
    rows[290:300, 0, 3], rows[290:300, 1, 5] = torch.inf, -torch.inf
    rows[300:310, 0, 7], rows[305:310, 1, 0] = torch.nan, torch.nan
    rows[310:320, :, 1], rows[310:320, :, 2] = torch.inf, torch.nan
    rows[320:340] = rows[320:340].round() / 2  # ties
    rows[340:360] = rows[340:360].abs()
    rows[360:380] = torch.randn(20, HEADS, dim, generator=generator) * 300  # past fp8's largest
    return rows.to(dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [8, 64, 72, 96, 128])
@pytest.mark.parametrize("codec", codec_names())
def test_fields_are_those_of_the_codec(
    codec: str, dim: int, dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if codec.startswith("q") and dim % 32:
        return
    monkeypatch.setenv(ISA_VARIABLE, isa)
    rows = rows_of_every_kind(dim, dtype)
    spec = CacheSpec.of((LayerSpec(attention_planes(HEADS, dim), Full()),), BLOCK_TOKENS)
    layout = CacheLayout.of(spec, uniform(codec))
    n_blocks = len(rows) // BLOCK_TOKENS
    arena = torch.zeros(layout.sectors_for([n_blocks]) * layout.sector_bytes, dtype=torch.uint8)
    limits = Limits(1, len(rows), len(rows))
    scratch = torch.zeros(native.workspace_bytes(layout, limits, HEADS), dtype=torch.uint8)
    kernels = native.bind(arena, layout, limits, scratch)
    table = np.random.default_rng(0).permutation(n_blocks).astype(np.int32)
    ends = np.array([0, len(rows)], np.int32)
    step = kernels.begin(AttentionBatch(ends, ends[1:], (table[None],)))
    step.write(0, {"k": rows, "v": rows.flip(0)})
    blocks = block_locator(layout, 0)(table)
    for plane, written in (("k", rows), ("v", rows.flip(0))):
        view = PlaneView.of(arena, layout, 0, 0, plane)
        for name, want in get_codec(codec).encode(written).items():
            got = view.fields[name].read(blocks, BLOCK_TOKENS).flatten(0, 1)
            assert_same(got, want, codec == "fp8", f"{plane} {name}")


def test_keys_values_and_layers_of_different_codecs() -> None:
    """Both backends over one arena: the native one writes and attends, the reference reads it."""
    n_tokens, dim = 300, 64
    layers = (LayerSpec(attention_planes(HEADS, dim), Full()),) * 2
    layout = CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), kv_choice("k=int8,v=int4,0=fp16"))
    n_blocks = -(-n_tokens // BLOCK_TOKENS)
    arena = torch.full((layout.sectors_for([n_blocks]) * layout.sector_bytes,), 0xFF).byte()
    limits = Limits(1, n_tokens, n_tokens)
    ends = np.array([0, n_tokens], np.int32)
    table = np.arange(n_blocks, dtype=np.int32)[None]
    steps = []
    for module in (native, reference):
        scratch = torch.zeros(module.workspace_bytes(layout, limits, 6), dtype=torch.uint8)
        kernels = module.bind(arena, layout, limits, scratch)
        steps.append(kernels.begin(AttentionBatch(ends, ends[1:], (table,))))
    query = torch.randn(n_tokens, 6, dim)
    for layer in range(2):
        steps[0].write(layer, {plane: torch.randn(n_tokens, HEADS, dim) for plane in "kv"})
        got, want = (step.attend(layer, query, dim**-0.5) for step in steps)
        torch.testing.assert_close(got, want, atol=4e-4, rtol=0)  # 15 bit products of levels


def assert_same(got: Tensor, want: Tensor, holds_fp8: bool, where: str) -> None:
    if holds_fp8:
        nan = (want & 0x7F) == 0x7F
        assert torch.equal((got & 0x7F) == 0x7F, nan), where
    elif want.is_floating_point():
        nan = want.isnan()
        assert torch.equal(got.isnan(), nan), where
    else:
        nan = torch.zeros_like(want, dtype=torch.bool)
    differ = (got.contiguous().view(torch.uint8) != want.contiguous().view(torch.uint8)).view(
        *want.shape, -1
    ).any(-1) & ~nan
    first = differ.nonzero()[:3].tolist()
    assert not differ.any(), f"{where}: {int(differ.sum())} differ, the first at {first}"
