"""SGLang: one slot per token, a second pool for window layers, and a state for every request.

full layers     users x context slots, and one page that takes what padding writes
window layers   a share of those slots (--swa-full-tokens-ratio), not window x users
states          one for each running request and one more
"""

from __future__ import annotations

from collections.abc import Iterator

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
from holdover.units import round_up

NAME = "sglang"
SPLITS_HEADS = True  # sizes are of one device
OPTIONS: dict[str, Option] = {
    "page-size": 1,
    "swa-ratio": 0.8,  # --swa-full-tokens-ratio
    "mem-fraction": 0.88,  # --mem-fraction-static
}

# By codec; the type of the model is the cache's where none is given.
TYPES = {
    "bf16": "", "fp16": "--dtype float16", "fp32": "--dtype float32",
    "fp8": "--kv-cache-dtype fp8_e4m3",
}  # fmt: skip


def reserve(request: Request) -> Reservation:
    memories = [on_one_rank(m, request.n_devices) for m in request.model.memories]
    buffers = tuple(_buffer(request, memory) for memory in memories)
    page, tokens = int(request.options["page-size"]), request.users * request.context_tokens
    per_token = sum(
        _stored(request, m).bytes_per_token * _share(request, m)
        for m in memories
        if not isinstance(m.residency, Fixed)
    )
    pool_tokens = None
    room_bytes = request.pool_bytes(request.options["mem-fraction"])
    if room_bytes is not None and per_token:
        fixed = sum(
            b.n_bytes
            for b, m in zip(buffers, memories, strict=True)
            if isinstance(m.residency, Fixed)
        )
        pool_tokens = max(0, int((room_bytes - fixed) / per_token) // page * page)
    flags = [
        f"--context-length {request.context_tokens}",
        f"--max-running-requests {request.users}",
        f"--max-total-tokens {round_up(tokens, page)}",
        f"--mem-fraction-static {request.options['mem-fraction']}",
    ]
    flags += cache_type_flags(NAME, request.kv, TYPES)
    if page != OPTIONS["page-size"]:
        flags.append(f"--page-size {page}")
    if request.n_devices > 1:
        flags.append(f"--tp-size {request.n_devices}")
    windows = [m for m in memories if isinstance(m.residency, Window | Chunk)]
    if windows:
        flags.append(f"--swa-full-tokens-ratio {request.options['swa-ratio']}")
    return Reservation(
        buffers, int(per_token), pool_tokens, tuple(flags), tuple(_notes(request, windows))
    )


def _buffer(request: Request, memory: MemorySpec) -> Buffer:
    stored = _stored(request, memory)
    cells = _cells(request, memory)
    return Buffer(memory.label, cells, len(memory.layers), stored.block.logical_bytes(cells))


def _cells(request: Request, memory: MemorySpec) -> int:
    page, tokens = int(request.options["page-size"]), request.users * request.context_tokens
    if memory.kind is Kind.STATE:
        return request.users + 1
    if isinstance(memory.residency, Fixed):
        return round_up(request.users * memory.residency.n_rows, page) + page
    slots = int(tokens * _share(request, memory)) // memory.tokens_per_row
    return round_up(slots, page) + page


def _share(request: Request, memory: MemorySpec) -> float:
    windowed = isinstance(memory.residency, Window | Chunk)
    return float(request.options["swa-ratio"]) if windowed else 1.0


def _stored(request: Request, memory: MemorySpec) -> StoredMemory:
    return stored_memory(request, memory, block_tokens=1)


def _notes(request: Request, windows: list[MemorySpec]) -> Iterator[str]:
    yield (
        f"--max-total-tokens makes the pool this large; without it, it takes what weights leave "
        f"of {request.options['mem-fraction']} of each device"
    )
    yield from beyond_model(request, "it asks for SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1")
    if windows:
        longest = max(memory.rows(request.context_tokens) for memory in windows)
        least = min(1.0, longest / request.context_tokens)
        yield (
            f"window layers get {request.options['swa-ratio']} of the slots whatever the window; "
            f"--swa-full-tokens-ratio {least:.3f} and a little more would do"
        )
    if any(m.kind is Kind.STATE for m in request.model.memories):
        yield "a state for each running request and one more, in use or not"
