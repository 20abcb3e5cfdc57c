"""Models found by architecture search (Nemotron-NAS, DeciLM): each block says what it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.layer_lists import listed
from holdover.geometry.sizing.mechanisms.base import Layer, exact
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import attention_planes
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Full, Residency, Window

KINDS = frozenset({"full", "sliding"})
RANK = 15

_UNKNOWN = ("sparsify", "num_sink_tokens", "use_prefill_window_in_sink_attention",
            "unshifted_sink", "llama4", "mamba")  # fmt: skip


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.states("block_configs")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    blocks = listed(reader, "block_configs", layer.n_layers) or []
    block = blocks[layer.index]
    name = f"block_configs[{layer.index}].attention"
    attention: Any = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise reader.wrong(name, "is missing; each block must say what attention it has")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return ()
    for unknown in _UNKNOWN:
        if attention.get(unknown):
            raise reader.wrong(f"{name}.{unknown}", "changes what is stored in an unknown way")
    query_heads = reader.integer(*names.QUERY_HEADS)
    if attention.get("num_key_value_heads") is not None:
        kv_heads = reader.as_integer(attention["num_key_value_heads"], name)
    elif attention.get("n_heads_in_group") is not None:
        group = reader.as_integer(attention["n_heads_in_group"], f"{name}.n_heads_in_group")
        kv_heads = exact(reader, f"{name}.n_heads_in_group", query_heads, group)
    else:
        raise reader.wrong(f"{name}.n_heads_in_group", "is missing; it gives the KV heads")
    dim = reader.optional_integer(*names.HEAD_DIM) or exact(
        reader, names.QUERY_HEADS[0], reader.integer(*names.HIDDEN), query_heads
    )
    residency: Residency = Full()
    if attention.get("window_length") is not None:
        residency = Window(reader.as_integer(attention["window_length"], f"{name}.window_length"))
    label = "full" if isinstance(residency, Full) else f"window {residency}"
    planes = attention_planes(kv_heads, dim)
    return (MemorySpec(Kind.ATTENTION, label, planes, residency, (layer.index,)),)
