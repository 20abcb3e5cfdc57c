"""What one layer keeps per token, and for how long.

`geometry` makes these from a model's configuration; a served model asks for them and never
describes its own layers a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.spec.residency import Residency


@dataclass(frozen=True, slots=True)
class Plane:
    """One kind of vector stored per token and layer: `heads` rows of `dim` elements."""

    name: str
    heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The cache of one attention layer; `shares_with` names an earlier layer whose KV it reads."""

    planes: tuple[Plane, ...]
    residency: Residency
    shares_with: int | None = None


def attention_planes(kv_heads: int, head_dim: int) -> tuple[Plane, ...]:
    """Keys and values of MHA, GQA and MQA."""
    return (Plane("k", kv_heads, head_dim), Plane("v", kv_heads, head_dim))
