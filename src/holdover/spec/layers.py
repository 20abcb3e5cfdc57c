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


def latent_planes(rank: int, rope_dim: int) -> tuple[Plane, ...]:
    """The latent and the rotary key of MLA, one row of each for all heads."""
    return (Plane("latent", 1, rank), Plane("rope", 1, rope_dim))


@dataclass(frozen=True, slots=True)
class Attended:
    """What attention reads of a token: a query meets the rows of `keys`, one behind the other.

    Where `values` is one of them, as MLA's latent is, what is mixed are views of these keys.
    """

    keys: tuple[Plane, ...]
    values: Plane

    @classmethod
    def of(cls, planes: tuple[Plane, ...]) -> Attended | None:
        """None: no rule here attends over such planes."""
        by_name = {plane.name: plane for plane in planes}
        if by_name.keys() == {"k", "v"}:
            return cls((by_name["k"],), by_name["v"])
        if by_name.keys() == {"latent", "rope"}:
            return cls((by_name["latent"], by_name["rope"]), by_name["latent"])
        return None

    @property
    def heads(self) -> int:
        return self.values.heads

    @property
    def query_dim(self) -> int:
        return sum(plane.dim for plane in self.keys)

    @property
    def values_are_keys(self) -> bool:
        return self.values in self.keys
