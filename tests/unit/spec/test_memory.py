"""Bytes of a `MemorySpec`: closed forms against counting row by row, and against the engine's."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.codecs.base import codec_names, uniform
from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, Plane, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.memory import (
    Kind,
    MemorySpec,
    Sharding,
    StoredMemory,
    on_one_rank,
)
from holdover.spec.residency import Chunk, Fixed, Full, Residency, Window, read_tokens

residencies = st.one_of(
    st.just(Full()),
    st.builds(Window, st.integers(1, 40), st.integers(0, 8)),
    st.builds(Chunk, st.integers(1, 40)),
)
BF16 = uniform("bf16")


def attention(residency: Residency | Fixed, **changes: object) -> MemorySpec:
    memory = MemorySpec(Kind.ATTENTION, "x", attention_planes(2, 32), residency, (0, 3))
    return MemorySpec(**{name: getattr(memory, name) for name in memory.__slots__} | changes)


@given(residencies, st.integers(0, 130))
def test_rows_are_the_most_that_any_step_so_far_read(residency: Residency, n_tokens: int) -> None:
    def read_at(position: int) -> int:
        first = residency.first_visible(position)
        sinks = min(residency.sink_tokens, first)
        return sinks + position - first + 1

    expected = max((read_at(p) for p in range(n_tokens)), default=0)
    assert read_tokens(residency, n_tokens) == expected
    assert attention(residency).rows(n_tokens) == expected


@given(residencies, st.integers(0, 130), st.sampled_from([1, 4, 16]))
def test_held_blocks_cover_every_step(residency: Residency, n: int, block_tokens: int) -> None:
    memory = attention(residency)
    stored = StoredMemory.of(memory, BF16, block_tokens)
    expected = 0
    for position in range(n):
        first, sinks = residency.first_visible(position), residency.sink_tokens
        live = set(range(min(sinks, first))) | set(range(first, position + 1))
        expected = max(expected, len({row // block_tokens for row in live}))
    held = stored.held_bytes(n)
    assert held == expected * stored.block.nbytes
    assert held >= stored.logical_bytes(n)


@given(st.sampled_from([4, 128]), st.integers(0, 2000))
def test_a_compressed_row_stands_for_its_tokens_once_they_are_complete(ratio: int, n: int) -> None:
    memory = attention(Full(), tokens_per_row=ratio)
    stored = StoredMemory.of(memory, BF16)
    assert memory.rows(n) == n // ratio
    assert stored.logical_bytes(n) == n // ratio * 2 * (2 * 32 * 2) * 2
    assert stored.bytes_per_token == Fraction(2 * (2 * 32 * 2) * 2, ratio)


def test_fixed_memory_is_one_size_at_any_length() -> None:
    image = StoredMemory.of(attention(Fixed(100), kind=Kind.CROSS), BF16)
    assert image.logical_bytes(0) == image.logical_bytes(10**6) == 100 * 2 * 256
    assert image.held_bytes(5) == 112 * 2 * 256  # seven blocks of 16
    assert image.bytes_per_token == 0


@pytest.mark.parametrize(
    ("codec", "dtype", "item_bytes"),
    [("bf16", None, 2), ("fp32", None, 4), ("bf16", DType.FP32, 4), ("fp32", DType.BF16, 2)],
)
def test_a_state_has_its_own_element_type(codec: str, dtype: DType | None, item_bytes: int) -> None:
    planes = (Plane("state", 8, 64),)
    memory = MemorySpec(Kind.STATE, "mamba2", planes, Fixed(1), (1, 2, 3), dtype=dtype)
    stored = StoredMemory.of(memory, uniform(codec))
    assert stored.logical_bytes(10) == stored.held_bytes(10) == 3 * 8 * 64 * item_bytes


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("n_tokens", [1, 15, 16, 17, 500, 513, 4096])
def test_bytes_equal_those_of_the_engines_layout(codec: str, n_tokens: int) -> None:
    full, window = Full(), Window(512)
    planes = attention_planes(2, 64)
    layers = tuple(LayerSpec(planes, full if i % 6 == 5 else window) for i in range(12))
    layout = CacheLayout.of(CacheSpec.of(layers, 16), uniform(codec))
    memories = [
        MemorySpec(Kind.ATTENTION, "x", planes, residency, tuple(where))
        for residency, where in (
            (window, [i for i in range(12) if i % 6 != 5]), (full, [5, 11]),
        )
    ]  # fmt: skip
    choice = uniform(codec)
    stored = [StoredMemory.of(memory, choice) for memory in memories]
    assert sum(one.logical_bytes(n_tokens) for one in stored) == layout.read_bytes(n_tokens)
    blocks = layout.peak_blocks(n_tokens, step_tokens=1)
    assert sum(one.held_bytes(n_tokens) for one in stored) == layout.held_bytes(blocks)


def test_heads_are_split_and_at_least_one_stays_on_each_rank() -> None:
    memory = attention(Full())
    assert [p.heads for p in on_one_rank(memory, 2).planes] == [1, 1]
    assert [p.heads for p in on_one_rank(memory, 8).planes] == [1, 1]
    latent = attention(Full(), sharding=Sharding.REPLICATED)
    assert on_one_rank(latent, 8) == latent
