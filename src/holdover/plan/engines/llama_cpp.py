"""llama.cpp: cells set aside at start for every slot, and what its builds keep in other types.

full     cells = 256 x ceil(context / 256) per slot
window   256 x ceil(min(context, window + micro-batch) / 256) per slot; with a unified cache
         window x slots + micro-batch together
states   F32, one per slot and one more for each token that speculation may roll back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdover.codecs.base import sized_kv_choice
from holdover.errors import ConfigError
from holdover.plan.engines.base import Buffer, Option, Request, Reservation, beyond_model
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec, StoredMemory
from holdover.spec.residency import Chunk, Window
from holdover.units import ceil_div, round_up

NAME = "llama.cpp"
SPLITS_HEADS = False  # layers are split over devices, whole
OPTIONS: dict[str, Option] = {
    "ubatch": 512,  # -ub
    "unified": False,  # --kv-unified
    "swa-full": False,  # --swa-full: windows keep every cell
    "swa-quantised": False,  # before April 2026 window layers took the cache's type too
    "rollback": False,  # room to take back one speculated token
    "rollback-tokens": 1,
    "mla-decompressed": False,  # builds that do not absorb MLA
    "no-windows": False,  # ik_llama.cpp, which knows no windows
}

CELLS = 256  # every cache is a multiple of this long
# Types whose windows llama.cpp does not apply.
_WINDOWLESS = frozenset(
    ("phi3", "phi3_v", "phimoe", "starcoder2", "mistral", "mixtral", "ministral", "qwen2")
)
# bf16 as f16: its default type, and as large.
_TYPES = {
    "bf16": "f16", "fp16": "f16", "fp32": "f32", "q8_0": "q8_0", "q5_1": "q5_1", "q5_0": "q5_0",
    "q4_1": "q4_1", "q4_0": "q4_0",
}  # fmt: skip
_NEAREST = {"int8": "q8_0", "fp8": "q8_0", "int4": "q4_0"}
_QUANTISED = frozenset(name for name in _TYPES if name.startswith("q"))


def reserve(request: Request) -> Reservation:
    types = _types(request.kv)
    memories = list(_memories(request))
    buffers = tuple(_buffer(request, memory) for memory in memories)
    growing = [m for m in memories if _takes_all_cells(request, m)]
    choice = sized_kv_choice(request.kv)
    per_token = sum(StoredMemory.of(m, choice).bytes_per_token for m in growing)
    context = request.users * round_up(request.context_tokens, CELLS)
    flags = [f"-c {context}", f"-np {request.users}", f"-ub {request.options['ubatch']}"]
    if types != ("f16", "f16"):
        flags.append(f"-ctk {types[0]} -ctv {types[1]}")
    if types[1] in _QUANTISED:
        flags.append("-fa on")
    flags += ["--kv-unified"] if request.options["unified"] else []
    flags += ["--swa-full"] if request.options["swa-full"] else []
    return Reservation(buffers, int(per_token), None, tuple(flags), tuple(_notes(request)))


def cells_of(request: Request, memory: MemorySpec) -> int:
    """Cells of one layer over all slots; a state has one cell per slot."""
    slots, options = request.users, request.options
    if memory.kind is Kind.STATE:
        kept = int(options["rollback-tokens"]) + 1 if options["rollback"] else 1
        return slots * kept
    tokens = ceil_div(request.context_tokens, memory.tokens_per_row)
    window = _window_tokens(request, memory)
    together = slots if options["unified"] else 1
    streams = 1 if options["unified"] else slots
    cells = round_up(tokens * together, CELLS)
    if window is not None:
        cells = min(cells, window * together + int(options["ubatch"]))
    return streams * round_up(cells, CELLS)


def _buffer(request: Request, memory: MemorySpec) -> Buffer:
    kv = request.kv
    window = _window_tokens(request, memory)
    quantised = any(name in _QUANTISED for name in sized_kv_choice(kv).of_planes or ())
    if window is not None and quantised and not request.options["swa-quantised"]:
        kv = "fp16"
    stored = StoredMemory.of(memory, sized_kv_choice(kv), block_tokens=CELLS)
    cells = cells_of(request, memory)
    return Buffer(memory.label, cells, len(memory.layers), stored.block.logical_bytes(cells))


def _memories(request: Request) -> Iterator[MemorySpec]:
    for memory in request.model.memories:
        if memory.kind is Kind.CROSS:
            continue  # computed anew from the encoder's output in every step
        if memory.kind is Kind.STATE:
            yield replace(memory, dtype=DType.FP32)
        elif request.options["mla-decompressed"] and memory.planes[0].name == "latent":
            yield _decompressed(request, memory)
        else:
            yield memory


def _decompressed(request: Request, memory: MemorySpec) -> MemorySpec:
    """Keys and values of every head instead of the latent they are computed from."""
    fields = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads, nope, rope, value = (request.text_field(name) for name in fields)
    for name, number in zip(fields, (heads, nope, rope, value), strict=True):
        if not isinstance(number, int):
            raise ConfigError(name, "is missing; keys and values of MLA cannot be sized without it")
    planes = (Plane("k", heads, nope + rope), Plane("v", heads, value))
    return replace(memory, planes=planes, label="mla, decompressed")


def _window_tokens(request: Request, memory: MemorySpec) -> int | None:
    """Window of a layer as llama.cpp applies it; None where it keeps every cell."""
    if request.options["swa-full"] or request.options["no-windows"]:
        return None
    if request.model.model_type in _WINDOWLESS:
        return None
    match memory.residency:
        case Window():
            return memory.residency.window_tokens
        case Chunk():
            return memory.residency.chunk_tokens
        case _:
            return None


def _takes_all_cells(request: Request, memory: MemorySpec) -> bool:
    return memory.kind is not Kind.STATE and _window_tokens(request, memory) is None


def _types(kv: str) -> tuple[str, str]:
    """Types of keys and of values."""
    planes = sized_kv_choice(kv).of_planes
    if planes is None:
        raise ConfigError("--kv", f"llama.cpp stores all layers alike, unlike {kv!r}")
    found = []
    for name in planes:
        if name not in _TYPES:
            nearest = f"; the nearest is {_NEAREST[name]}" if name in _NEAREST else ""
            raise ConfigError("--kv", f"llama.cpp has no cache type {name!r}{nearest}")
        found.append(_TYPES[name])
    return found[0], found[1]


def _notes(request: Request) -> Iterator[str]:
    memories = request.model.memories
    windows = [m for m in memories if isinstance(m.residency, Window | Chunk)]
    if windows and request.options["no-windows"]:
        yield "windows are not applied: every layer keeps all cells"
    elif windows and request.model.model_type in _WINDOWLESS:
        yield f"llama.cpp does not apply the windows of {request.model.model_type}"
    elif windows:
        yield "window layers hold window + micro-batch cells; F16 there even in a quantised cache"
    if any(memory.kind is Kind.STATE for memory in memories):
        yield "states are F32, one for every slot, whether it is in use or not"
    if any(memory.kind is Kind.CROSS for memory in memories):
        yield "cross-attention keys and values are not cached but computed in every step"
    yield from beyond_model(request, "it goes on with a warning; see --rope-scaling")
    if request.n_devices > 1:
        yield "layers are split over the devices: the sizes are of all devices together"
