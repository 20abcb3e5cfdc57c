"""vLLM: one pool of equal blocks, to which unlike layers are made to fit.

Layers of one kind and length form groups of equal size; each block of a group holds `block_size`
tokens of all its layers. Where kinds differ in bytes per token, the smaller pages are padded or
made longer, and mamba states are padded to a page. A window layer holds window - 1 + the tokens
of one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdover.codecs.base import sized_kv_choice
from holdover.plan.engines._gpu import stored_memory
from holdover.plan.engines.base import (
    Buffer,
    Option,
    Request,
    Reservation,
    beyond_model,
    cache_type_flags,
)
from holdover.spec.memory import Kind, MemorySpec, StoredMemory, on_one_rank
from holdover.spec.residency import Chunk, Fixed, Window
from holdover.units import ceil_div, round_up

NAME = "vllm"
SPLITS_HEADS = True  # sizes are of one device
OPTIONS: dict[str, Option] = {
    "block-size": 16,
    "batched-tokens": 8192,  # --max-num-batched-tokens
    "utilization": 0.9,
}


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of one kind: `page_bytes` of one layer and block of `block_tokens`."""

    label: str
    memory: MemorySpec
    n_layers: int
    page_bytes: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Pool:
    """All layers with pages of one size. A block is `group_layers` pages of `page_bytes`."""

    layers: tuple[Layers, ...]
    page_bytes: int
    group_layers: int
    block_tokens: int

    @property
    def block_bytes(self) -> int:
        return self.group_layers * self.page_bytes

    def groups(self, layers: Layers) -> int:
        return ceil_div(layers.n_layers, self.group_layers)

    @property
    def n_groups(self) -> int:
        return sum(self.groups(layers) for layers in self.layers)


def reserve(request: Request) -> Reservation:
    pool = pool_of(request)
    buffers = []
    for layers in pool.layers:
        blocks = request.users * pool.groups(layers) * _blocks(request, layers)
        buffers.append(
            Buffer(layers.label, blocks * layers.block_tokens, layers.n_layers,
                   blocks * pool.block_bytes)
        )  # fmt: skip
    per_token = pool.n_groups * pool.block_bytes // pool.block_tokens
    pool_tokens = None
    room_bytes = request.pool_bytes(request.options["utilization"])
    if room_bytes is not None:
        n_blocks = room_bytes // pool.block_bytes
        pool_tokens = n_blocks // pool.n_groups * pool.block_tokens
    return Reservation(
        tuple(buffers), per_token, pool_tokens, _flags(request), tuple(_notes(request, pool))
    )


def pool_of(request: Request) -> Pool:
    """The pool that fits all layers."""
    block_tokens = int(request.options["block-size"])
    memories = [on_one_rank(m, request.n_devices) for m in request.model.memories]
    growing = [m for m in memories if m.kind is not Kind.STATE]
    states = _states([m for m in memories if m.kind is Kind.STATE], request)
    layers = _one_type(growing, request, block_tokens)
    if states and layers:
        # The attention block is made long enough for a page to hold a state.
        per_token = min(ceil_div(one.page_bytes, one.block_tokens) for one in layers)
        largest = max(state.page_bytes for state in states)
        block_tokens = round_up(max(block_tokens, ceil_div(largest, per_token)), block_tokens)
        layers = _one_type(growing, request, block_tokens)
    every = [*layers, *states]
    page_bytes = max(one.page_bytes for one in every)
    every = [_unified(one, page_bytes) for one in every]
    counts = [one.n_layers for one in every]
    fewest, most = min(counts), max(counts)
    group_layers = most if most < 1.25 * fewest else fewest
    return Pool(tuple(every), page_bytes, group_layers, block_tokens)


def _one_type(memories: list[MemorySpec], request: Request, block_tokens: int) -> list[Layers]:
    """Layers by residency; where all keep every token their pages may differ, and are summed."""
    stored = [stored_memory(request, m, block_tokens) for m in memories]
    alike = all(part.memory.grows and part.memory.tokens_per_row == 1 for part in stored)
    if alike and len(stored) > 1:
        page = sum(part.block.logical_bytes(block_tokens) for part in stored)
        return [Layers("all layers", stored[0].memory, 1, page, block_tokens)]
    return [
        Layers(
            part.memory.label, part.memory, len(part.memory.layers),
            part.block.logical_bytes(block_tokens) // len(part.memory.layers),
            block_tokens * part.memory.tokens_per_row,
        )
        for part in stored
    ]  # fmt: skip


def _states(memories: list[MemorySpec], request: Request) -> list[Layers]:
    """A layer's state and its convolution lie in one page."""
    choice = sized_kv_choice("bf16" if request.kv not in ("fp32", "fp16") else request.kv)
    by_layers: dict[tuple[int, ...], list[StoredMemory]] = {}
    for memory in memories:
        by_layers.setdefault(memory.layers, []).append(StoredMemory.of(memory, choice))
    return [
        Layers(
            parts[0].memory.label, parts[0].memory, len(layers),
            sum(part.logical_bytes(1) for part in parts) // len(layers), 1,
        )
        for layers, parts in by_layers.items()
    ]  # fmt: skip


def _unified(layers: Layers, page_bytes: int) -> Layers:
    """A page that divides the largest gets more tokens; any other is padded."""
    longer, rest = divmod(page_bytes, layers.page_bytes)
    if rest == 0 and longer > 1 and layers.memory.kind is not Kind.STATE:
        return replace(layers, page_bytes=page_bytes, block_tokens=layers.block_tokens * longer)
    return replace(layers, page_bytes=page_bytes)


def _blocks(request: Request, layers: Layers) -> int:
    """Blocks of one conversation in one group."""
    residency, tokens = layers.memory.residency, request.context_tokens
    step = int(request.options["batched-tokens"])
    match residency:
        case Fixed():
            state = layers.memory.kind is Kind.STATE
            return 1 if state else ceil_div(residency.n_rows, layers.block_tokens)
        case Window():
            held = min(residency.window_tokens - 1 + step, tokens)
            return ceil_div(held, layers.block_tokens) + 1
        case Chunk():
            return ceil_div(min(residency.chunk_tokens + step, tokens), layers.block_tokens)
        case _:
            return ceil_div(tokens, layers.block_tokens)


def _flags(request: Request) -> tuple[str, ...]:
    flags = [
        f"--max-model-len {request.context_tokens}",
        f"--max-num-seqs {request.users}",
        f"--max-num-batched-tokens {request.options['batched-tokens']}",
        f"--gpu-memory-utilization {request.options['utilization']}",
    ]
    flags += cache_type_flags(NAME, request.kv, _types(request))
    if request.options["block-size"] != OPTIONS["block-size"]:
        flags.append(f"--block-size {request.options['block-size']}")
    if request.n_devices > 1:
        flags.append(f"--tensor-parallel-size {request.n_devices}")
    return tuple(flags)


def _types(request: Request) -> dict[str, str]:
    """Flags by codec. The type of the model is the cache's where none is given."""
    types = {
        "bf16": "", "fp16": "--dtype float16", "fp32": "--dtype float32",
        "fp8": "--kv-cache-dtype fp8",
    }  # fmt: skip
    if any(m.planes[0].name == "latent" for m in request.model.memories):
        return types | {"fp8_ds_mla": "--kv-cache-dtype fp8_ds_mla"}
    return types | {"int8": "--kv-cache-dtype int8_per_token_head"}


def _notes(request: Request, pool: Pool) -> Iterator[str]:
    yield (
        f"at start it takes {request.options['utilization']} of each device, and makes a pool of "
        "what weights and a trial step leave; this is what these conversations fill of it"
    )
    yield from beyond_model(request, "it asks for VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    memories = request.model.memories
    if pool.n_groups > 1:
        yield (
            f"{pool.n_groups} groups of {pool.group_layers} layers share blocks of "
            f"{pool.block_bytes:,} bytes; the tokens it prints count every group as full"
        )
    if any(isinstance(m.residency, Window | Chunk) for m in memories):
        yield "a window layer holds window - 1 + the tokens of a step"
    if any(m.kind is Kind.INDEXER for m in memories):
        yield "indexer keys are stored as fp8 with a scale: 132 bytes for 128 dims"
    if pool.block_tokens != request.options["block-size"]:
        yield f"attention blocks grow to {pool.block_tokens} tokens, to be as large as a state"
