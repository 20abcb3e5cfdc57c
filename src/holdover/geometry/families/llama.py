"""Llama and its relatives: Llama 2/3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3.

They differ in biases, q/k norms and in which layers slide; all store plain keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.geometry._fields import MAX_LAYERS, Fields, layer_kinds, read_heads
from holdover.geometry._layers import common_numbers
from holdover.geometry._rope import DEFAULT_THETA, context_limit, read_rope, scaling_parameters
from holdover.geometry.base import Geometry

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# What transformers' config classes assume of fields that a config leaves out. Sizes have no
# default here: a config without them is damaged.
_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": DEFAULT_THETA}
_QWEN = _COMMON | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "mistral": _COMMON,
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}


def read(config: Mapping[str, Any], model_type: str) -> Geometry:
    fields = Fields(config, _DEFAULTS[model_type])
    query_heads, kv_heads, head_dim = read_heads(fields)
    context_tokens = fields.integer("max_position_embeddings")
    n_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    layer_kinds(fields, n_layers)  # refuses kinds that are not served
    rope = read_rope(
        scaling_parameters(fields),
        fields.number("rope_theta"),
        head_dim,
        context_tokens,
        "rope_parameters.",
    )
    limit_tokens = context_limit(rope, context_tokens)
    attention_bias = model_type != "qwen2" and fields.flag("attention_bias")
    return Geometry(
        family="llama",
        architecture=MODEL_TYPES[model_type],
        **common_numbers(fields, config, model_type, limit_tokens),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ropes=(rope,),
        layer_ropes=(0,) * n_layers,
        activation=fields.activation("hidden_act"),
        attention_scale=head_dim**-0.5,
        qkv_bias=attention_bias or model_type == "qwen2",
        output_bias=attention_bias,
        mlp_bias=model_type == "llama" and fields.flag("mlp_bias"),
        qk_norm=model_type == "qwen3",
    )


def layer_tensors(geometry: Geometry) -> Mapping[str, tuple[int, ...]]:
    g = geometry
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (g.hidden_size,),
        "post_attention_layernorm.weight": (g.hidden_size,),
    }
    if g.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (g.head_dim,) for name in "qk"}
    return shapes


def resident_norm_elements(geometry: Geometry) -> tuple[int, int]:
    heads = (geometry.query_heads + geometry.kv_heads) * geometry.head_dim
    return 2 * geometry.hidden_size + (heads if geometry.qk_norm else 0), 0
