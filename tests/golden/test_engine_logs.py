"""What engines printed and published for real models, reproduced by `--engine`.

`engine_logs.json` has the facts of each model ("SSF*2" stands for its list of layer types) and:
llama.cpp's buffers in MiB as logged, vLLM's pool tokens with the GiB they were printed for, and
other projects' published bytes (growing per token, windows, states as those projects store them).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdover.geometry.sizing import read_memory
from holdover.plan.engines import vllm
from holdover.plan.engines.base import Request, Reservation, find_engine
from holdover.plan.sizing.cache import Cache
from holdover.spec.memory import Kind
from holdover.spec.residency import Fixed

LOGS = json.loads((Path(__file__).parent / "engine_logs.json").read_text())
LETTERS = {
    "S": "sliding_attention", "F": "full_attention", "L": "linear_attention", "C": "conv",
    "M": "mamba", "H": "hybrid",
}  # fmt: skip
GIB = 2**30


def config(name: str) -> dict[str, Any]:
    facts = dict(LOGS["models"][name])
    for key in ("layer_types", "layers_block_type"):
        if isinstance(facts.get(key), str):
            letters, _, times = facts[key].partition("*")
            facts[key] = [LETTERS[letter] for letter in letters] * int(times)
    return facts


def reserve(
    engine: str, name: str, kv: str, users: int, context: int, options: str = "",
    n_devices: int = 1, room_bytes: int | None = None,
) -> Reservation:  # fmt: skip
    facts = config(name)
    module, chosen = find_engine(f"{engine}:{options}")
    model = read_memory(facts)
    request = Request(model, facts, kv, users, context, n_devices, room_bytes, chosen)
    return module.reserve(request)


@pytest.mark.parametrize("line", LOGS["llama.cpp"], ids=lambda line: f"{line[0]} {line[5]}")
def test_llama_cpp_buffers_as_logged(line: list[Any]) -> None:
    name, kv, users, context, options, label, printed_mib = line
    found = reserve("llama.cpp", name, kv, users, context, options)
    states = {m.label for m in read_memory(config(name)).memories if m.kind is Kind.STATE}
    chosen = [
        buffer.n_bytes
        for buffer in found.buffers
        if label in ("all", buffer.what) or (label == "states" and buffer.what in states)
    ]
    assert chosen, [buffer.what for buffer in found.buffers]
    assert f"{sum(chosen) / 2**20:.2f}" == printed_mib


@pytest.mark.parametrize("line", LOGS["vllm"], ids=lambda line: f"{line[0]} {line[3]} GiB")
def test_vllm_pool_tokens_as_logged(line: list[Any]) -> None:
    name, kv, n_devices, room_gib, printed_tokens, bytes_per_token = line
    room = round(room_gib * GIB)
    found = reserve("vllm", name, kv, 1, 4096, n_devices=n_devices, room_bytes=room)
    assert found.bytes_per_token == bytes_per_token
    assert found.pool_tokens is not None
    # The room was printed with two digits; the rank with least memory decides on several GPUs.
    slack = 0.005 * GIB / bytes_per_token + 16 + (0.012 * printed_tokens if n_devices > 1 else 0)
    assert abs(found.pool_tokens - printed_tokens) <= slack


@pytest.mark.parametrize("line", LOGS["vllm rows"], ids=lambda line: line[0])
def test_vllm_rows_of_latents(line: list[Any]) -> None:
    name, kv, latent_bytes, index_bytes = line
    found = reserve("vllm", name, kv, 1, 4096)
    n_layers = LOGS["models"][name]["num_hidden_layers"]
    assert found.bytes_per_token == n_layers * (latent_bytes + index_bytes)


@pytest.mark.parametrize("line", LOGS["vllm geometry"], ids=lambda line: line[0])
def test_vllm_geometry(line: list[Any]) -> None:
    name, n_layers, heads, dim = line
    model = read_memory(config(name))
    assert model.n_layers == n_layers
    attention = next(m for m in model.memories if m.kind is Kind.ATTENTION)
    planes = attention.planes
    assert planes[0].heads == heads
    latent = planes[0].name == "latent"
    assert (sum(p.dim for p in planes) if latent else planes[0].dim) == dim


@pytest.mark.parametrize("line", LOGS["own need"], ids=lambda line: line[0])
def test_what_a_model_needs_as_published(line: list[Any]) -> None:
    name, growing, windows, states = line
    cache = Cache.of(read_memory(config(name)).memories, "bf16")
    state_bytes = sum(
        part.logical_bytes(1) for part in cache.parts if isinstance(part.memory.residency, Fixed)
    )
    assert cache.growing_bytes_per_token == growing
    assert cache.fixed_bytes - state_bytes == windows
    assert state_bytes == states


def test_vllm_makes_attention_blocks_as_long_as_a_state() -> None:
    """vLLM's own log says 544 tokens for Qwen3-Next."""
    facts = config("Qwen3-Next-80B-A3B")
    module, options = find_engine("vllm")
    pool = vllm.pool_of(Request(read_memory(facts), facts, "bf16", 1, 4096, options=options))
    assert module.NAME == "vllm"
    assert pool.block_tokens == 544
