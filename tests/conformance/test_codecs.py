"""Every codec, by its name: its fields, its stated error, and what becomes of extreme values.

Policy for all codecs: zeros come back as zeros, a row of one head never changes because of the
rows of other heads or tokens, and a row with inf or NaN in it is never a row of plain numbers. Raw
codecs keep inf and NaN, and overflow to inf. Planes that a codec cannot store are refused with the
reason before anything is stored.
"""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor

from holdover.codecs.base import Codec, codec_names, get_codec, uniform
from holdover.errors import ConfigError
from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, Plane, attention_planes
from holdover.spec.layout import BlockLayout
from holdover.spec.residency import Full

CODECS = codec_names()
BLOCKED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
RAW = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PLANES = (Plane("k", 1, 8), Plane("k", 3, 64), Plane("v", 2, 80), Plane("k", 4, 256))


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


def refuses(codec: Codec, plane: Plane) -> bool:
    """Whether the codec must refuse the plane; that it does is checked here."""
    if codec.name in BLOCKED and plane.dim % 32:
        with pytest.raises(ConfigError, match=rf"--kv: {codec.name} .* {plane.dim}: .* of 32"):
            codec.fields(plane, 16)
        return True
    return False


def rows_of(plane: Plane, *lead: int) -> Tensor:
    """Rows whose heads differ a thousandfold in size."""
    generator = torch.Generator().manual_seed(prod(lead) + plane.dim)
    rows = torch.randn(*lead, plane.heads, plane.dim, generator=generator)
    return rows * torch.logspace(-2, 1, plane.heads)[:, None]


def roundtrip(codec: Codec, rows: Tensor) -> Tensor:
    return codec.decode(codec.encode(rows))


@pytest.mark.parametrize("plane", PLANES, ids=str)
@pytest.mark.parametrize("block_tokens", [1, 3, 16])
def test_fields_are_what_encode_returns(codec: Codec, plane: Plane, block_tokens: int) -> None:
    if refuses(codec, plane):
        return
    fields = codec.fields(plane, block_tokens)
    encoded = codec.encode(rows_of(plane, 5, 2))
    assert {f.name for f in fields} == set(encoded)
    for field in fields:
        assert len(field.axes) == len(field.shape) == len(set(field.axes))
        row_shape = [n for axis, n in zip(field.axes, field.shape, strict=True) if axis != "token"]
        got = encoded[field.name]
        assert got.shape == (5, 2, *row_shape), field.name
        assert got.dtype == getattr(torch, field.dtype.torch_name), field.name
        if "token" in field.axes:
            assert field.shape[field.axes.index("token")] == block_tokens
        # What the layout counts is what torch stores.
        assert torch.empty(field.shape, dtype=got.dtype).nbytes == field.nbytes


@pytest.mark.parametrize("plane", PLANES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_is_within_what_the_codec_states(
    codec: Codec, plane: Plane, dtype: torch.dtype
) -> None:
    if refuses(codec, plane):
        return
    rows = rows_of(plane, 40).to(dtype)
    decoded = roundtrip(codec, rows)
    assert decoded.dtype == torch.float32
    assert decoded.shape == rows.shape
    largest = rows.float().abs().amax(-1, keepdim=True)
    held = largest.squeeze(-1) >= codec.error_from
    assert held.float().mean() > 0.2
    error = ((decoded - rows.float()) / largest).square().mean(-1).sqrt()[held]
    assert error.max() <= codec.max_error
    # The stated error is no excuse: a codec that states much more than it makes is wrong too.
    if codec.max_error and dtype == torch.float32:
        assert error.max() > codec.max_error / 64


def test_element_order_keeps_heads_and_tokens_apart(codec: Codec) -> None:
    """Change one row: only that row's decoded values change, wherever the codec puts them."""
    plane = Plane("k", 3, 32)
    rows = rows_of(plane, 7)
    changed = rows.clone()
    changed[4, 1] *= 3
    differs = (roundtrip(codec, rows) != roundtrip(codec, changed)).any(-1)
    assert differs.nonzero().tolist() == [[4, 1]]


def test_a_row_does_not_depend_on_the_rows_beside_it(codec: Codec) -> None:
    rows = rows_of(Plane("k", 2, 32), 9)
    alone = torch.cat([roundtrip(codec, row[None]) for row in rows])
    assert torch.equal(alone, roundtrip(codec, rows))


def test_no_rows_are_no_rows(codec: Codec) -> None:
    rows = torch.zeros(0, 2, 32)
    assert roundtrip(codec, rows).shape == rows.shape


def test_zeros_stay_zeros(codec: Codec) -> None:
    rows = torch.zeros(3, 2, 32)
    assert torch.equal(roundtrip(codec, rows), rows)


@pytest.mark.parametrize("name", RAW)
def test_extreme_values_of_raw_codecs(name: str) -> None:
    info = torch.finfo(RAW[name])
    exact = [0.0, -0.0, 1.0, info.max, info.min, info.tiny, info.smallest_normal / 4, torch.inf]
    rows = torch.tensor(exact).view(1, 1, -1)
    decoded = roundtrip(get_codec(name), rows)
    assert torch.equal(decoded, rows)
    assert torch.equal(decoded.signbit(), rows.signbit())
    odd = torch.tensor([torch.nan, 3e38 * 2, -torch.inf, 1e-46]).view(1, 1, -1)
    nan, over, minus, under = roundtrip(get_codec(name), odd).flatten().tolist()
    assert (nan != nan, over, minus, under) == (True, torch.inf, -torch.inf, 0.0)
    beyond = info.max * 1.01 if name == "fp16" else None
    if beyond:
        assert roundtrip(get_codec(name), torch.full((1, 1, 2), beyond)).isinf().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_a_row_that_is_not_finite_is_not_plain_numbers(codec: Codec, value: float) -> None:
    rows = torch.ones(2, 1, 64)
    rows[1, 0, 5] = value
    decoded = roundtrip(codec, rows)
    assert torch.allclose(decoded[0], rows[0], atol=2 * codec.max_error)
    if codec.name == "fp8" and value == value:  # it has no infinity, and says so
        assert decoded[1, 0, 5] == (448 if value > 0 else -448)
    else:
        assert not decoded[1, 0, 5].isfinite()


def test_layout_counts_the_bytes_of_the_fields(codec: Codec) -> None:
    planes = attention_planes(3, 64)
    spec = CacheSpec.of((LayerSpec(planes, Full()),) * 2, 16)
    layout = BlockLayout.of(spec.groups[0], 16, uniform(codec.name))
    stored = 0
    for plane in planes:
        encoded = codec.encode(rows_of(plane, 16))
        for field in codec.fields(plane, 16):
            stored += encoded[field.name].nbytes if "token" in field.axes else field.nbytes
    assert layout.payload_nbytes == 2 * stored
    if codec.name in RAW:
        assert stored == 16 * 2 * 3 * 64 * DType(codec.name).item_bytes


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"--kv: no codec 'fp23'; there are: .*bf16.*fp32"):
        get_codec("fp23")
