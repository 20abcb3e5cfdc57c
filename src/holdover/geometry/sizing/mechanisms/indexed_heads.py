"""Attention by heads with a block-sparse indexer that keeps its own keys (MiniMax-M3)."""

from __future__ import annotations

from dataclasses import replace

from holdover.geometry.sizing.mechanisms import attention
from holdover.geometry.sizing.mechanisms.base import Layer, index_keys
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"indexed", "full"})
RANK = 10


def claims(reader: Reader, layer: Layer) -> bool:
    if layer.kind == "full":  # what Qwen4-Exp's files call its indexed layers
        return reader.model_type == "qwen4_exp_text" and reader.knows("indexer_head_dim")
    return not reader.knows("kv_lora_rank") and (
        reader.knows("index_head_dim", "index_n_heads")
        or reader.knows("indexer_head_dim", "indexer_kv_heads")
        or reader.knows("sparse_attention_config")
    )


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    if reader.knows("indexer_head_dim", "indexer_kv_heads"):
        heads, dim = reader.integer("indexer_kv_heads"), reader.integer("indexer_head_dim")
        return (
            *attention.stores(reader, replace(layer, kind="full")),
            index_keys("index", layer, dim, heads),
        )
    part = reader.part("sparse_attention_config") or reader
    reader.ignore("index_head_dim", "index_n_heads")
    part.integer("sparse_num_index_heads", "index_n_heads")  # of queries: the key has one head
    dim = part.integer("sparse_index_dim", "index_head_dim")
    return (
        *attention.stores(reader, replace(layer, kind="full")),
        index_keys("index", layer, dim),
    )
