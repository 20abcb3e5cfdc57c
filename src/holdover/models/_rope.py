"""Rotary positions: frequencies once per model, angles once per step, rotation once per layer.

Frequencies follow transformers' order of operations in fp32: at position 100,000 a difference in
the last bit of a frequency is a visible turn. So is what an angle in fp32 would be rounded by:
angles are made in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdover.geometry.base import Rope


@dataclass(frozen=True, slots=True)
class Angles:
    """Of one step: cosines and sines [tokens, 1, dim], the first half of the sines negated."""

    cos: Tensor
    sin: Tensor


def frequencies(rope: Rope) -> Tensor:
    """Turns per token of each pair: fp32 [dim / 2]."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    wavelengths = rope.theta**exponents
    if rope.kind == "yarn":
        return _yarn(rope, wavelengths)
    plain = 1.0 / wavelengths
    if rope.frequency_divisors:
        plain = plain / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return plain / rope.factor
    return _llama3(rope, plain) if rope.kind == "llama3" else plain


def angles(rope: Rope, turns: Tensor, positions: Tensor, dtype: torch.dtype) -> Angles:
    """`turns` are the rope's `frequencies`; the attention factor is part of both tables."""
    theta = positions.to(torch.float64)[:, None] * turns
    cos, sin = theta.cos().float(), theta.sin_().float()
    del theta
    if rope.attention_factor != 1.0:
        cos, sin = cos * rope.attention_factor, sin * rope.attention_factor
    cos, sin = cos.to(dtype), sin.to(dtype)
    return Angles(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn each (element, element + dim / 2) pair of `x` [tokens, heads, dim]."""
    turned = x * angles.cos
    turned += torch.roll(x, x.shape[-1] // 2, dims=-1).mul_(angles.sin)
    return turned


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    waves = 2 * math.pi / plain
    longest = rope.original_context_tokens / rope.low_freq_factor
    shortest = rope.original_context_tokens / rope.high_freq_factor
    stretched = torch.where(waves > longest, plain / rope.factor, plain)
    keep = (rope.original_context_tokens / waves - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - keep) * stretched / rope.factor + keep * stretched
    between = (waves >= shortest) & (waves <= longest)
    return torch.where(between, blended, stretched)


def _yarn(rope: Rope, wavelengths: Tensor) -> Tensor:
    """Pairs that turn often in the original context are kept, those that turn rarely stretched."""

    def pair_turning(times: float) -> float:
        per_turn = rope.original_context_tokens / (times * 2 * math.pi)
        return rope.dim * math.log(per_turn) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep
