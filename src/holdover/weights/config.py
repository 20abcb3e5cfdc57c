"""One shape of config for every source: the keys of a Hugging Face text model.

From a folder the file's own keys are kept, a multimodal `text_config` lifted to the top. From a
GGUF header the same keys are derived by `gguf_config`. What the keys mean, older and newer
spellings, and defaults that a config leaves out are the geometry's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.weights._gguf_header import GgufHeader

# What one layer in six of Gemma 3 does not do: llama.cpp knows it by architecture, the header does
# not say it. The same holds for the local rotary base, and for the 27B's own query scale.
_GEMMA3_PATTERN = 6
_GEMMA3_LOCAL_ROPE_THETA = 10_000.0
_GEMMA3_27B_LAYERS = 62

_REQUIRED_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def canonical_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's config out of a config.json."""
    text = raw.get("text_config")
    config = dict(raw)
    if isinstance(text, Mapping):
        # The outer file names the wrapper; keys that only it has (dtype, eos ids) still count.
        config = {key: value for key, value in raw.items() if not key.endswith("_config")}
        config |= text
        if "model_type" not in text and "model_type" in raw:
            config["model_type"] = f"{raw['model_type']}_text"
    return config


def gguf_config(path: Path, header: GgufHeader) -> dict[str, Any]:
    """A Hugging Face config out of a GGUF header; refuses an architecture that is not served."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(path, "header has no general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None or _key(header, "expert_count", 0):
        kind = architecture if family is None else f"{architecture} with experts"
        raise UnsupportedModelError(
            f"{path}: architecture {kind!r} is not supported; "
            f"supported in GGUF files: {', '.join(sorted(_FAMILIES))}"
        )
    config = _common(path, header) | family(header)
    for key in _REQUIRED_COUNTS:
        if not isinstance(config[key], int) or config[key] < 1:
            raise ModelFileError(
                path, f"header gives {config[key]!r} for {key}; it must be 1 or more"
            )
    return config


def _key(header: GgufHeader, name: str, default: Any = None) -> Any:
    return header.metadata.get(f"{header.metadata['general.architecture']}.{name}", default)


def _needed(path: Path, header: GgufHeader, name: str) -> Any:
    value = _key(header, name)
    if value is None:
        raise ModelFileError(
            path, f"header has no {header.metadata['general.architecture']}.{name}"
        )
    return value


def _common(path: Path, header: GgufHeader) -> dict[str, Any]:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(path, "has no tensor token_embd.weight")
    hidden_size = _needed(path, header, "embedding_length")
    n_heads = _needed(path, header, "attention.head_count")
    if not isinstance(n_heads, int) or not isinstance(hidden_size, int) or n_heads < 1:
        raise ModelFileError(
            path, f"header gives {n_heads!r} attention heads; one number is needed"
        )
    head_dim = _key(header, "attention.key_length", hidden_size // n_heads)
    if _key(header, "attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: value heads of another width than the key heads")
    if _key(header, "rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: rotary embedding over a part of each head")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": _needed(path, header, "feed_forward_length"),
        "num_hidden_layers": _needed(path, header, "block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": _key(header, "attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": _needed(path, header, "context_length"),
        "rms_norm_eps": _needed(path, header, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _key(header, "rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(path, header),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "hidden_act": "silu",
        "sliding_window": None,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _rope_scaling(path: Path, header: GgufHeader) -> dict[str, Any] | None:
    kind = _key(header, "rope.scaling.type", "none")
    factor = _key(header, "rope.scaling.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = _needed(path, header, "rope.scaling.original_context_length")
        scaling = {"rope_type": "yarn", "factor": factor}
        return scaling | {"original_max_position_embeddings": original}
    raise UnsupportedModelError(f"{path}: rope scaling {kind!r} is not supported in GGUF files")


def _llama(header: GgufHeader) -> dict[str, Any]:
    window = _key(header, "attention.sliding_window", 0)
    return (
        {"model_type": "mistral", "sliding_window": window} if window else {"model_type": "llama"}
    )


def _qwen2(header: GgufHeader) -> dict[str, Any]:
    return {"model_type": "qwen2", "use_sliding_window": False}


def _qwen3(header: GgufHeader) -> dict[str, Any]:
    return {"model_type": "qwen3", "use_sliding_window": False}


def _gemma3(header: GgufHeader) -> dict[str, Any]:
    n_layers = _key(header, "block_count", 0)
    hidden_size, n_heads = _key(header, "embedding_length"), _key(header, "attention.head_count")
    width = hidden_size // n_heads
    scale = width if n_layers == _GEMMA3_27B_LAYERS else _key(header, "attention.key_length", width)
    pattern = _key(header, "attention.sliding_window_pattern", _GEMMA3_PATTERN)
    if isinstance(pattern, int):
        sliding = [(layer + 1) % pattern != 0 for layer in range(n_layers)]
    else:
        sliding = [bool(flag) for flag in pattern]
    return {
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "sliding_window": _key(header, "attention.sliding_window"),
        "layer_types": ["sliding_attention" if s else "full_attention" for s in sliding],
        "rope_theta": _key(header, "rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": _key(header, "rope.freq_base_swa", _GEMMA3_LOCAL_ROPE_THETA),
        "final_logit_softcapping": _key(header, "final_logit_softcapping"),
        "attn_logit_softcapping": _key(header, "attn_logit_softcapping"),
    }


_FAMILIES: dict[str, Callable[[GgufHeader], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
