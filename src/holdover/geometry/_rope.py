"""Rotary position settings: transformers 5 `rope_parameters`, transformers 4 `rope_scaling`.

Both become a `Rope`; a kind that is not served is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdover.errors import UnsupportedModelError
from holdover.geometry._fields import Fields
from holdover.geometry.base import Rope

DEFAULT_THETA = 10_000.0
_KINDS = ("default", "linear", "llama3", "yarn")


def scaling_parameters(fields: Fields) -> Mapping[str, Any]:
    """The settings of a config with one kind of position: the older name wins, as in HF."""
    settings = fields.part("rope_scaling") or fields.part("rope_parameters") or {}
    named = ("original_max_position_embeddings", "rope_freq_factors")
    return {name: fields.get(name) for name in named if fields.has(name)} | dict(settings)


def read_rope(
    settings: Mapping[str, Any], theta: float, dim: int, context_tokens: int, where: str
) -> Rope:
    """`theta` is what applies when the settings do not say; `context_tokens` likewise."""
    scaling = Fields(settings, {}, where)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind not in _KINDS:
        raise UnsupportedModelError(
            f"rope_type {kind!r} is not supported; supported: {', '.join(_KINDS)}"
        )
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    theta = scaling.number("rope_theta", theta)
    divisors = scaling.numbers("rope_freq_factors")
    if divisors and len(divisors) != dim // 2:
        raise scaling.wrong("rope_freq_factors", f"has {len(divisors)} values, not {dim // 2}")
    if kind == "default":
        return Rope("default", theta, dim, frequency_divisors=divisors)
    if kind == "linear":
        return Rope("linear", theta, dim, scaling.number("factor"), frequency_divisors=divisors)
    original = scaling.integer("original_max_position_embeddings", context_tokens)
    if kind == "llama3":
        low = scaling.number("low_freq_factor")
        high = scaling.number("high_freq_factor")
        if low == high:
            raise scaling.wrong("high_freq_factor", f"{high} must differ from low_freq_factor")
        return Rope(
            "llama3",
            theta,
            dim,
            scaling.number("factor"),
            original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = scaling.number("factor", context_tokens / original)
    return Rope(
        "yarn",
        theta,
        dim,
        factor,
        original,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
        attention_factor=_yarn_attention_factor(scaling, factor),
    )


def context_limit(rope: Rope, context_tokens: int) -> int:
    """Longest context: yarn configs often state the one before stretching."""
    if rope.kind != "yarn":
        return context_tokens
    return max(context_tokens, int(rope.factor * rope.original_context_tokens))


def stretch_magnitude(factor: float, weight: float) -> float:
    """By what queries or keys grow with a context stretched `factor` times (YaRN's mscale)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_attention_factor(scaling: Fields, factor: float) -> float:
    if scaling.has("attention_factor"):
        return scaling.number("attention_factor")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        weights = scaling.number("mscale"), scaling.number("mscale_all_dim")
        turned, all_dims = (stretch_magnitude(factor, weight) for weight in weights)
        return turned / all_dims
    return stretch_magnitude(factor, 1.0)
