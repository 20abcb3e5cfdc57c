"""What a mechanism is: a file that turns one layer's fields into what the layer stores.

A file offers `KINDS`, the layer kinds it can serve, `claims(reader, layer)`, whether the config's
fields are those of this mechanism, and `stores(reader, layer)`. Where several files claim a layer
the highest `RANK` serves it; two of one rank would be a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from holdover.geometry.sizing.reader import Reader
from holdover.registry import load_all
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec, Sharding
from holdover.spec.residency import Fixed, Full

_DTYPES = {"float32": DType.FP32, "bfloat16": DType.BF16, "float16": DType.FP16}


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer `index` of `n_layers`; an MTP layer has an index from `n_layers` on."""

    index: int
    n_layers: int
    kind: str


class Mechanism(Protocol):
    KINDS: frozenset[str]
    RANK: int

    def claims(self, reader: Reader, layer: Layer) -> bool: ...

    def stores(self, reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
        """Memories of this one layer, with `layers` = (index,)."""


def mechanisms() -> Mapping[str, Mechanism]:
    loaded = load_all(__package__ or "")
    return {name: cast(Mechanism, module) for name, module in loaded.items()}


def stores_of(
    found: Mapping[str, Mechanism], reader: Reader, layer: Layer
) -> tuple[MemorySpec, ...]:
    """What a layer stores; refuses a kind for which the fields of no mechanism are there."""
    if layer.kind == "none":
        return ()
    claiming = [m for m in found.values() if layer.kind in m.KINDS and m.claims(reader, layer)]
    if not claiming:
        raise reader.wrong(
            "layer_types",
            f"layer {layer.index} is {layer.kind!r}, and no known fields say how "
            "such a layer remembers",
        )
    best = max(m.RANK for m in claiming)
    chosen = [m for m in claiming if best == m.RANK]
    if len(chosen) > 1:
        raise reader.wrong("model_type", f"{reader.model_type!r} has fields of several mechanisms")
    return chosen[0].stores(reader, layer)


def state(label: str, layer: Layer, heads: int, dim: int, dtype: DType | None = None) -> MemorySpec:
    """A recurrent state or the last inputs of a convolution: `heads` x `dim` elements."""
    planes = (Plane("state", heads, dim),)
    return MemorySpec(Kind.STATE, label, planes, Fixed(1), (layer.index,), dtype=dtype)


def index_keys(
    label: str, layer: Layer, dim: int, heads: int = 1, tokens_per_row: int = 1
) -> MemorySpec:
    """Keys that a sparse attention chooses by; every rank needs all of them."""
    return MemorySpec(
        Kind.INDEXER, label, (Plane("index", heads, dim),), Full(), (layer.index,),
        tokens_per_row, sharding=Sharding.REPLICATED,
    )  # fmt: skip


def stated_dtype(reader: Reader, *names: str) -> DType | None:
    """The element type that a config gives to its states, or None."""
    value = reader.get(*names)
    if value is None:
        reader.note(names[0], "as the cache, or bf16", "not stated; some engines hold fp32")
        return None
    if not isinstance(value, str) or value not in _DTYPES:
        raise reader.wrong(names[0], f"{value!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[value]


def exact(reader: Reader, name: str, whole: int, parts: int) -> int:
    """`whole` / `parts`, which must be a whole number."""
    if whole % parts:
        raise reader.wrong(name, f"{parts} does not divide {whole}")
    return whole // parts


def per_layer(reader: Reader, value: Any, name: str, layer: Layer) -> Any:
    """A value, or the entry of this layer where it is a list."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) < layer.n_layers:
        raise reader.wrong(name, f"has {len(value)} entries for {layer.n_layers} layers")
    return value[min(layer.index, len(value) - 1)]
