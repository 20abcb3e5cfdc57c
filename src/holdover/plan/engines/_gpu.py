"""How vLLM and SGLang store rows: they share the kernels that read them."""

from __future__ import annotations

from dataclasses import replace

from holdover.codecs.base import get_sized_codec, sized_kv_choice
from holdover.plan.engines.base import Request
from holdover.spec.layers import Plane
from holdover.spec.layout import CodecChoice, FieldCodec
from holdover.spec.memory import Kind, MemorySpec, StoredMemory


def stored_memory(request: Request, memory: MemorySpec, block_tokens: int) -> StoredMemory:
    """`memory` in the codecs of the request; an indexer's own element type gives way to fp8."""
    if memory.kind is Kind.INDEXER:
        memory = replace(memory, dtype=None)
    return StoredMemory.of(memory, _codec_choice(request), block_tokens)


def _codec_choice(request: Request) -> CodecChoice:
    """Indexer keys are always fp8 with a scale; fp8 latents beside an indexer have scales too."""
    choice = sized_kv_choice(request.kv)
    sparse = any(m.kind is Kind.INDEXER for m in request.model.memories)
    index, latent = get_sized_codec("fp8_indexer"), get_sized_codec("fp8_ds_mla")
    scaled = request.kv in ("fp8", "fp8_ds_mla") and sparse

    def choose(layer: int, plane: Plane) -> FieldCodec:
        if plane.name == "index":
            return index
        return latent if scaled and plane.name in ("latent", "rope") else choice(layer, plane)

    return choose
