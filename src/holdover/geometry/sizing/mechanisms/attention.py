"""Keys and values per head: MHA, GQA and MQA, over everything, a window or a chunk."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.heads import attention_planes_of
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Chunk, Full, Residency, Window

KINDS = frozenset({"full", "sliding", "chunked"})
RANK = 0


def claims(reader: Reader, layer: Layer) -> bool:
    return True


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    label, residency = residency_of(reader, layer)
    planes = attention_planes_of(reader, layer, sliding=isinstance(residency, Window))
    return (MemorySpec(Kind.ATTENTION, label, planes, residency, (layer.index,)),)


def residency_of(reader: Reader, layer: Layer) -> tuple[str, Residency]:
    """(label, rule) of an attention layer of this kind."""
    if layer.kind in ("sliding", "hybrid_sliding"):
        if reader.get("use_sliding_window") is False:
            return "full", Full()
        n_tokens = _window(reader)
        return f"window {n_tokens}", Window(n_tokens)
    if layer.kind == "chunked":
        n_tokens = reader.integer("attention_chunk_size")
        return f"chunk {n_tokens}", Chunk(n_tokens)
    return "full", Full()


def _window(reader: Reader) -> int:
    if reader.model_type == "xlnet":
        return reader.integer("mem_len")
    if reader.model_type != "modernbert-decoder":
        return reader.integer(*names.WINDOW)
    stated = reader.optional_integer("sliding_window")
    if stated is not None:
        reader.ignore("local_attention")
        return stated
    return reader.integer("local_attention", minimum=2) // 2  # its encoder looks both ways
