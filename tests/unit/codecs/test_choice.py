"""`--kv` as a person writes it: who gets which codec, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdover.codecs.base import kv_choice, sized_kv_choice
from holdover.errors import ConfigError
from holdover.spec.layers import Plane

K, V, LATENT, ROPE = (Plane(name, 1, 32) for name in ("k", "v", "latent", "rope"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int8", {(0, K): "int8", (9, V): "int8", (3, LATENT): "int8"}),
        ("k=int8,v=int4", {(0, K): "int8", (0, V): "int4", (0, LATENT): "int8"}),
        ("latent=int4,k=int8", {(0, LATENT): "int4", (0, ROPE): "int8", (0, V): "bf16"}),
        (
            "rope@1=fp32,latent=int8,1=int4",
            {(0, ROPE): "bf16", (1, ROPE): "fp32", (1, LATENT): "int4"},
        ),
        ("v=int4", {(0, K): "bf16", (0, V): "int4"}),
        ("int4,0-1=bf16", {(0, K): "bf16", (1, V): "bf16", (2, K): "int4"}),
        (
            "k@0-3=fp32, int4 ,k=int8,2=fp16",
            {(0, K): "fp32", (2, K): "fp32", (2, V): "fp16", (3, V): "int4", (4, K): "int8"},
        ),
    ],
)
def test_the_narrowest_rule_decides(text: str, expected: dict[Any, str]) -> None:
    choose = kv_choice(text)
    assert {at: choose(*at).name for at in expected} == expected
    assert choose.name == text


@pytest.mark.parametrize(
    "text",
    [
        "=",
        "=int8",
        "k=",
        "q=int8",
        "late=int8",
        "k@=int8",
        "@0=int8",
        "0-=int8",
        "3-1=int8",
        "int8,int4",
        "k=int8,k=int4",
        "0=int8,0-0=int4",
        "int8,",
        "k=int9",
        "-1=int8",
        "k=int8=int4",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv"):
        kv_choice(text)


def test_layers_are_those_of_the_model() -> None:
    kv_choice("int8,0-29=bf16").demand_layers(30)
    with pytest.raises(ConfigError, match="names layer 30; this model's go from 0 to 29"):
        kv_choice("int8,0-30=bf16").demand_layers(30)


def test_planes_are_those_of_the_model() -> None:
    kv_choice("k=int8,rope=fp32").demand_planes([LATENT, ROPE])
    with pytest.raises(ConfigError, match="names v; this model stores latent and rope"):
        kv_choice("k=int8,v=fp32").demand_planes([LATENT, ROPE])
    with pytest.raises(ConfigError, match="names latent; this model stores k and v"):
        kv_choice("latent=fp32").demand_planes([K, V])


def test_a_codec_for_sizing_only_is_not_served() -> None:
    assert sized_kv_choice("k=fp8_ds_mla")(0, K).name == "fp8_ds_mla"
    with pytest.raises(ConfigError, match="sized but not served"):
        kv_choice("k=fp8_ds_mla")


@pytest.mark.parametrize(
    ("text", "planes"),
    [
        ("int8", ("int8", "int8")),
        ("v=int4", ("bf16", "int4")),
        ("int8,0=bf16", None),
        ("rope=int8", None),
    ],
)
def test_planes_of_an_engine_that_stores_layers_alike(
    text: str, planes: tuple[str, str] | None
) -> None:
    assert kv_choice(text).of_planes == planes
