"""`ram:SIZE:CODEC`: what is refused and what would work; bytes are those of the codec's layout."""

from __future__ import annotations

import pytest

from holdover.cache.tiers._open import parse_tiers, stored_layouts, tiers_bytes
from holdover.codecs.base import kv_choice, uniform
from holdover.errors import ConfigError
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window

SPEC = CacheSpec.of(
    tuple(LayerSpec(attention_planes(2, 64), r) for r in (Full(), Window(32), Full())), 16
)


def layout_of(kv: str) -> CacheLayout:
    return CacheLayout.of(SPEC, kv_choice(kv))


def opened(text: str, kv: str) -> CacheLayout:
    [stored] = stored_layouts(parse_tiers([text]), layout_of(kv))
    return stored


@pytest.mark.parametrize("codec", ["int8", "int4", "q4_0", "k=int8,v=int4"])
@pytest.mark.parametrize("kv", ["fp32", "bf16"])
def test_a_denser_codec_is_a_layout(codec: str, kv: str) -> None:
    assert opened(f"ram:8MiB:{codec}", kv) == layout_of(codec)
    plain, dense = (
        tiers_bytes(parse_tiers([text]), layout_of(kv))
        for text in ("ram:8MiB", f"ram:8MiB:{codec}")
    )
    assert plain <= 8 << 20 < dense, "buffers for what is under way are counted as well"


@pytest.mark.parametrize(
    ("text", "kv", "problem", "remedy"),
    [
        (
            "ram:8MiB:int4",
            "int4",
            "int4 is not denser than the cache's own int4",
            "no codec is; leave it out",
        ),
        ("ram:8MiB:int8", "int4", "not denser than the cache's own int4", "ram:SIZE"),
        ("ram:8MiB:bf16", "int8", "not denser than the cache's own int8", "int4"),
        ("ram:8MiB:bf16", "bf16", "not denser than the cache's own bf16", "fp8, int4, int8"),
        ("ram:8MiB:k=int4", "int8", "not denser", "int4"),  # values would be in bf16
        ("ram:8MiB:int8", "k=bf16,v=int4", "not denser than the cache's own bf16, int4", "int4"),
    ],
)
def test_what_is_not_denser_is_refused(text: str, kv: str, problem: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match="--tiers") as refused:
        opened(text, kv)
    assert problem in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("text", ["ram:8MiB:int5", "ram:8MiB:", "ram:8MiB:int4:x", "ram:8MiB:k="])
def test_a_codec_that_does_not_exist_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--tiers"):
        parse_tiers([text])


def test_planes_that_a_codec_cannot_store_are_named() -> None:
    odd = CacheSpec.of((LayerSpec(attention_planes(1, 24), Full()),), 16)
    with pytest.raises(ConfigError, match=r"--tiers.*q4_0 cannot store"):
        stored_layouts(parse_tiers(["ram:8MiB:q4_0"]), CacheLayout.of(odd, uniform("bf16")))
