"""What the model of a GGUF header remembers: its keys, said in the names that configs use.

A header states everything, so no class defaults apply. What llama.cpp knows by architecture and
the header does not say (which layers slide) is in the tables here. An architecture or a key that
is not known is refused by its GGUF name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing._read import model_memory
from holdover.geometry.sizing.base import ModelMemory, Parameters
from holdover.geometry.sizing.gguf_keys import (
    HARMLESS,
    NAMES,
    PATTERNS,
    RECURRENT,
    TYPES,
    recurrent_fields,
)  # fmt: skip
from holdover.geometry.sizing.reader import Reader

_LLAMA4_CHUNK_TOKENS = 8192


def read_gguf_memory(
    metadata: Mapping[str, Any],
    *,
    tensor_elements: Mapping[str, int] | None = None,
    assume: Mapping[str, str] | None = None,
    mtp: bool = False,
) -> ModelMemory:
    """`metadata` is the header's; `tensor_elements` the size of each tensor, to count parameters.

    Raises ConfigError naming the GGUF key that is missing, wrong or not understood.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ConfigError("general.architecture", "is missing from the header")
    if architecture not in TYPES:
        raise ConfigError("general.architecture", f"{architecture!r} is not an architecture that "
                          f"is known; known are: {', '.join(sorted(TYPES))}")  # fmt: skip
    prefix = f"{architecture}."
    keys = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    try:
        config = _config(architecture, keys)
        reader = Reader(config, {}, TYPES[architecture], dict(assume or {}), whole=config)
        if architecture == "llama4" and "attention.chunk_size" not in keys:
            config["attention_chunk_size"] = _LLAMA4_CHUNK_TOKENS
            reader.note("attention_chunk_size", _LLAMA4_CHUNK_TOKENS, "llama.cpp, for llama4")
        memory = model_memory(reader, config, mtp)
    except ConfigError as error:
        own = {common: key for key, common in NAMES.items()}
        name = prefix + own.get(error.field, error.field)
        raise ConfigError(name, error.reason) from error
    if not tensor_elements:
        return memory
    count = sum(tensor_elements.values())
    return replace(memory, parameters=Parameters(count, _active(tensor_elements, keys), "file"))


def _config(architecture: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [architecture], "model_type": TYPES[architecture]}
    for key, value in keys.items():
        if key in NAMES:
            config[NAMES[key]] = value
        elif not HARMLESS.match(key) and value not in (0, False, "", None):
            raise ConfigError(key, "may change what the model remembers, and is not understood")
    n_layers = keys.get("block_count")
    if not isinstance(n_layers, int) or isinstance(n_layers, bool) or n_layers < 1:
        raise ConfigError("block_count", f"{n_layers!r} is not a number of layers")
    n_layers -= _count(keys, "nextn_predict_layers")  # counted among the blocks
    if n_layers < 1:
        raise ConfigError("nextn_predict_layers", "leaves no layers")
    config["num_hidden_layers"] = n_layers
    if architecture == "t5":
        decoder_layers = keys.get("decoder_block_count", n_layers)
        return config | {"is_encoder_decoder": True, "num_decoder_layers": decoder_layers}
    _latents(keys, config)
    config["layer_types"] = _layer_types(architecture, keys, n_layers)
    config |= recurrent_fields(architecture, keys)
    if isinstance(config.get("num_key_value_heads"), list | tuple):
        # Zero stands for "no attention here"; such layers are of another kind by now.
        heads = _per_layer(keys, "attention.head_count", n_layers)
        pairs = zip(config["num_key_value_heads"], heads, strict=False)
        config["num_key_value_heads"] = [kv or query or 1 for kv, query in pairs]
    if isinstance(config.get("num_attention_heads"), list | tuple):
        config["num_attention_heads"] = [n or 1 for n in config["num_attention_heads"]]
    return config


def _latents(keys: Mapping[str, Any], config: dict[str, Any]) -> None:
    """MLA: the rotary part of a key is what `rope.dimension_count` says."""
    if keys.get("attention.kv_lora_rank"):
        if "rope.dimension_count" not in keys:
            raise ConfigError("rope.dimension_count", "is missing; it is the latent's rotary part")
        config["qk_rope_head_dim"] = keys["rope.dimension_count"]


def _layer_types(architecture: str, keys: Mapping[str, Any], n_layers: int) -> list[str]:
    windows = _windows(architecture, keys, n_layers)
    kinds = []
    for i, kv_heads in enumerate(_per_layer(keys, "attention.head_count_kv", n_layers)):
        if kv_heads == 0 or architecture in ("mamba", "mamba2", "rwkv6", "rwkv7"):
            kinds.append(_without_attention(architecture, keys, i, n_layers))
        elif architecture in ("qwen3next", "qwen35", "qwen35moe"):
            interval = _count(keys, "full_attention_interval") or 4
            kinds.append("linear_attention" if (i + 1) % interval else "full_attention")
        elif architecture == "falcon-h1":
            kinds.append("parallel")
        elif keys.get("attention.indexer.key_length"):
            kinds.append("indexed_attention")
        else:
            kinds.append(windows[i])
    return kinds


def _without_attention(
    architecture: str, keys: Mapping[str, Any], layer: int, n_layers: int
) -> str:
    if architecture in ("nemotron_h", "nemotron_h_moe"):
        feed_forward = _per_layer(keys, "feed_forward_length", n_layers)[layer]
        return "mlp" if feed_forward else "linear_attention"
    return RECURRENT.get(architecture, "none")


def _windows(architecture: str, keys: Mapping[str, Any], n_layers: int) -> list[str]:
    """The kind of each attention layer."""
    if architecture == "llama4":
        return ["chunked_attention" if (i + 1) % 4 else "full_attention" for i in range(n_layers)]
    if not _count(keys, "attention.sliding_window"):
        return ["full_attention"] * n_layers
    stated = keys.get("attention.sliding_window_pattern")
    if isinstance(stated, list | tuple):
        if len(stated) < n_layers:
            raise ConfigError("attention.sliding_window_pattern", f"not one per {n_layers} layers")
        slides = [bool(flag) for flag in stated[:n_layers]]
    else:
        if stated is None and architecture not in PATTERNS:
            raise ConfigError("attention.sliding_window_pattern", "is missing; which layers slide?")
        n, first = PATTERNS.get(architecture, (0, False))
        n = n if stated is None else int(stated)
        slides = [n == 0 or (i % n != 0 if first else i % n < n - 1) for i in range(n_layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _per_layer(keys: Mapping[str, Any], key: str, n_layers: int) -> list[int]:
    value = keys.get(key)
    if isinstance(value, list | tuple):
        if len(value) < n_layers:
            raise ConfigError(key, f"has {len(value)} entries for {n_layers} layers")
        return [int(one) for one in value[:n_layers]]
    return [-1 if value is None else int(value)] * n_layers


def _count(keys: Mapping[str, Any], key: str) -> int:
    value = keys.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(key, f"{value!r} is not a count")
    return value


def _active(tensor_elements: Mapping[str, int], keys: Mapping[str, Any]) -> int:
    """Parameters that one token's step reads: of the experts, those in use."""
    experts, used = keys.get("expert_count"), keys.get("expert_used_count")
    total = 0
    for name, elements in tensor_elements.items():
        routed = "_exps." in name and isinstance(experts, int) and isinstance(used, int)
        total += elements * used // experts if routed and experts and used else elements
    return total
