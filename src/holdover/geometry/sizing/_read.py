"""The steps of `read_memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.geometry.sizing.base import ModelMemory
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import attention_planes
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Full


def read(
    config: Mapping[str, Any],
    assume: Mapping[str, str],
    mtp: bool,
    defaults: Mapping[str, Mapping[str, Any]] | None,
) -> ModelMemory:
    model_type = str(config.get("model_type"))
    reader = Reader(config, (defaults or {}).get(model_type, {}), model_type, assume)
    n_layers = reader.integer("num_hidden_layers")
    query_heads = reader.integer("num_attention_heads")
    kv_heads = reader.optional_integer("num_key_value_heads") or query_heads
    head_dim = reader.optional_integer("head_dim") or reader.integer("hidden_size") // query_heads
    planes = attention_planes(kv_heads, head_dim)
    memory = MemorySpec(Kind.ATTENTION, "full", planes, Full(), tuple(range(n_layers)))
    return ModelMemory(
        architecture=str((config.get("architectures") or [model_type])[0]),
        model_type=model_type,
        n_layers=n_layers,
        memories=(memory,),
        max_context_tokens=reader.optional_integer("max_position_embeddings"),
        parameters=None,
        stored_dtype=config.get("dtype") or config.get("torch_dtype"),
        assumptions=tuple(reader.assumptions),
    )
