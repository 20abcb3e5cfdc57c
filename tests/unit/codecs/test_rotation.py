"""Rows are turned before they are quantised: what the turn is, and that it is worth it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdover.codecs import _rotation, int4, int8
from holdover.codecs._rotation import rotate, rotate_back
from holdover.codecs.base import get_codec, uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, Plane, attention_planes
from holdover.spec.layout import CacheLayout, Field
from holdover.spec.residency import Full

DIMS = [8, 64, 72, 80, 96, 128, 256]


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix, in float64."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / size**0.5


@pytest.mark.parametrize("dim", DIMS)
def test_the_turn_is_signs_and_then_a_hadamard_matrix(dim: int) -> None:
    width = next(2**n for n in range(9, -1, -1) if dim % 2**n == 0)
    signs = torch.tensor([-1.0 if 0x9E3779B97F4A7C15 >> d % 64 & 1 else 1.0 for d in range(dim)])
    matrix = torch.block_diag(*[hadamard(width)] * (dim // width)) * signs
    assert torch.allclose(matrix @ matrix.T, torch.eye(dim, dtype=torch.float64), atol=1e-12)
    rows = torch.randn(20, 3, dim, generator=torch.Generator().manual_seed(dim))
    assert torch.allclose(rotate(rows).double(), rows.double() @ matrix.T, atol=1e-5)
    assert torch.allclose(rotate_back(rotate(rows)), rows, atol=1e-5)
    other = rows.flip(0)
    products = (rows * other).sum(-1)
    assert torch.allclose((rotate(rows) * rotate(other)).sum(-1), products, atol=1e-4)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_signs_keep_plain_rows_from_becoming_one_large_element(dim: int) -> None:
    plain = torch.stack((torch.ones(dim), torch.arange(dim) % 2.0, torch.arange(dim) // 16 % 2.0))
    spread = rotate(plain).abs().amax(-1) / plain.norm(dim=-1)
    assert (spread < 0.71).all()
    assert not (plain @ hadamard(dim).float() / plain.norm(dim=-1, keepdim=True) < 0.71).all()


def keys_with_outliers() -> Tensor:
    """As keys have them: a few dims that are large in every row."""
    rows = torch.randn(400, 2, 64, generator=torch.Generator().manual_seed(0))
    rows[..., [5, 37]] *= 10
    rows[..., 50] += 15
    return rows


@pytest.mark.parametrize(("name", "module"), [("int4", int4), ("int8", int8)])
def test_without_the_turn_the_error_is_larger(
    name: str, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, codec = keys_with_outliers(), get_codec(name)

    def error() -> float:
        return float((codec.decode(codec.encode(rows)) - rows).square().mean())

    turned = error()
    for function in ("rotate", "rotate_back"):
        monkeypatch.setattr(module, function, lambda rows: rows)
    assert error() > 1.5 * turned


def test_the_kept_scale_has_the_least_error() -> None:
    rows, codec = keys_with_outliers(), int4.Int4()
    fields = codec.encode(rows)
    best = (codec.decode(fields) - rows).square().sum(-1)
    for factor in (0.9, 1.1):
        other = dict(fields) | {"scale": (fields["scale"].float() * factor).half()}
        # Levels would move too: over all rows the kept scale is better by far, not in each.
        assert (codec.decode(other) - rows).square().sum(-1).mean() > 1.1 * best.mean()


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_blocks_from_before_the_turn_have_another_fingerprint(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = CacheSpec.of((LayerSpec(attention_planes(2, 64), Full()),), 16)
    codec_type = type(get_codec(name))
    now, fields = CacheLayout.of(spec, uniform(name)), codec_type.fields

    def unturned(self: object, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        return tuple(
            Field(f.name, f.dtype, tuple(a.removeprefix("rotated_") for a in f.axes), f.shape)
            for f in fields(self, plane, block_tokens)
        )

    monkeypatch.setattr(codec_type, "fields", unturned)
    before = CacheLayout.of(spec, uniform(name))
    assert before.blocks[0].nbytes == now.blocks[0].nbytes
    assert before.fingerprint != now.fingerprint


def test_the_signs_are_not_a_pattern_of_the_transform() -> None:
    bits = [_rotation.SIGNS >> d & 1 for d in range(64)]
    signs = 1 - 2 * torch.tensor(bits, dtype=torch.float64)
    assert (hadamard(64) @ signs / 8).abs().max() < 0.5
