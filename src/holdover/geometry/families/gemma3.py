"""Gemma 3: five local layers with a window for each global one, each kind with its own rope base.

Reads the text model's config, and the multimodal wrapper's, whose text part is what is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.errors import UnsupportedModelError
from holdover.geometry._fields import MAX_LAYERS, Fields, layer_kinds, read_heads
from holdover.geometry._layers import common_numbers
from holdover.geometry._rope import context_limit, read_rope
from holdover.geometry.base import Geometry, Rope

MODEL_TYPES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
}

# transformers' Gemma3TextConfig: published configs leave out whatever equals these.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


def read(config: Mapping[str, Any], model_type: str) -> Geometry:
    fields = _text_fields(config, model_type)
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedModelError(
            "use_bidirectional_attention (an embedding model) is not supported; "
            "a text generator attends to earlier tokens only"
        )
    query_heads, kv_heads, head_dim = read_heads(fields)
    context_tokens = fields.integer("max_position_embeddings")
    n_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    kinds = layer_kinds(fields, n_layers) or _kinds_by_pattern(fields, n_layers)
    ropes = _ropes(fields, head_dim, context_tokens)
    limit_tokens = context_limit(ropes[0], context_tokens)
    attention_bias = fields.flag("attention_bias")
    return Geometry(
        family="gemma3",
        architecture=MODEL_TYPES[model_type],
        **common_numbers(fields, config, model_type, limit_tokens),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ropes=ropes,
        layer_ropes=tuple(int(kind == "sliding_attention") for kind in kinds),
        activation=fields.activation("hidden_activation"),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        final_softcap=_softcap(fields, "final_logit_softcapping"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
    )


def layer_tensors(geometry: Geometry) -> Mapping[str, tuple[int, ...]]:
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}_layernorm.weight": (geometry.hidden_size,) for name in norms
    }
    return shapes | {f"self_attn.{name}_norm.weight": (geometry.head_dim,) for name in "qk"}


def resident_norm_elements(geometry: Geometry) -> tuple[int, int]:
    heads = (geometry.query_heads + geometry.kv_heads) * geometry.head_dim
    return 0, 4 * geometry.hidden_size + heads


def _text_fields(config: Mapping[str, Any], model_type: str) -> Fields:
    """The text part with, for the wrapper, what the whole model says about tied embeddings."""
    if model_type == "gemma3_text":
        return Fields(config, _DEFAULTS)
    text = Fields(config, {}).part("text_config")
    if text is None:
        raise Fields(config, {}).wrong("text_config", "is missing; it describes the text model")
    tied = config.get("tie_word_embeddings")
    whole = {} if tied is None else {"tie_word_embeddings": tied}
    stored = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
    return Fields({**stored, **text, **whole}, _DEFAULTS, "text_config.")


def _kinds_by_pattern(fields: Fields, n_layers: int) -> tuple[str, ...]:
    """Every n-th layer is global."""
    name = "sliding_window_pattern"
    every = fields.integer(name if fields.has(name) else f"_{name}", _DEFAULTS[name])
    return tuple(
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(n_layers)
    )


def _ropes(fields: Fields, head_dim: int, context_tokens: int) -> tuple[Rope, Rope]:
    """(global, local). Scaling in the older style is of the global layers only."""
    parameters = Fields(fields.part("rope_parameters") or {}, {}, f"{fields.where}rope_parameters.")
    whole = {**(parameters.part("full_attention") or {}), **(fields.part("rope_scaling") or {})}
    local = parameters.part("sliding_attention") or {}
    return (
        read_rope(
            whole, fields.number("rope_theta"), head_dim, context_tokens, "rope full_attention."
        ),
        read_rope(
            local,
            fields.number("rope_local_base_freq"),
            head_dim,
            context_tokens,
            "rope sliding_attention.",
        ),
    )


def _softcap(fields: Fields, name: str) -> float:
    return fields.number(name) if fields.has(name) else 0.0
