"""Zamba, Zamba2: Mamba everywhere, and one shared attention block called at some layers.

The block's weights are shared, its keys and values are not: each call stores its own. It attends
over the hidden state beside the embedding, so that heads are twice as wide as hidden / heads.
"""

from __future__ import annotations

from dataclasses import replace

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms import mamba1, mamba2
from holdover.geometry.sizing.mechanisms.base import Layer, exact
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import attention_planes
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Full

KINDS = frozenset({"hybrid"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type in ("zamba", "zamba2")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.optional_integer("num_key_value_heads") or heads
    width = reader.optional_integer("attention_hidden_size")
    if width is None:
        width = 2 * reader.integer(*names.HIDDEN)
    dim = reader.optional_integer("attention_head_dim") or exact(
        reader, "num_attention_heads", width, heads
    )
    for unused in ("kv_channels", "num_query_groups"):
        reader.get(unused)
    planes = attention_planes(kv_heads, dim)
    memory = MemorySpec(Kind.ATTENTION, "full", planes, Full(), (layer.index,))
    mamba = mamba1 if reader.model_type == "zamba" else mamba2
    return (memory, *mamba.stores(reader, replace(layer, kind="linear")))
