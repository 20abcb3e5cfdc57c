"""gpt-oss: every other layer has a window, heads have learned sinks, every layer has experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.errors import UnsupportedModelError
from holdover.geometry._fields import MAX_LAYERS, Fields, layer_kinds, read_heads
from holdover.geometry._layers import common_numbers
from holdover.geometry._rope import context_limit, read_rope, scaling_parameters
from holdover.geometry.base import Geometry
from holdover.geometry.experts import SWIGLU_SLOPE, Experts

MODEL_TYPES = {"gpt_oss": "GptOssForCausalLM"}

# What transformers' GptOssConfig assumes of fields that a config leaves out. Sizes have no default
# here: a config without them is damaged.
_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "attention_bias": True,
    "num_experts_per_tok": 4,
    "swiglu_limit": 7.0,
    "swiglu_alpha": SWIGLU_SLOPE,
    "tie_word_embeddings": False,
}
_ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
_ROPE |= {"truncate": False, "original_max_position_embeddings": 4096}


def read(config: Mapping[str, Any], model_type: str) -> Geometry:
    fields = Fields(config, _DEFAULTS)
    _check_activation(fields)
    query_heads, kv_heads, head_dim = read_heads(fields)
    context_tokens = fields.integer("max_position_embeddings")
    n_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    layer_kinds(fields, n_layers)  # refuses kinds that are not served
    settings = scaling_parameters(fields) or _ROPE
    theta = fields.number("rope_theta")
    rope = read_rope(settings, theta, head_dim, context_tokens, "rope_parameters.")
    limit_tokens = context_limit(rope, context_tokens)
    attention_bias = fields.flag("attention_bias")
    return Geometry(
        family="gpt_oss",
        architecture=MODEL_TYPES[model_type],
        **common_numbers(fields, config, model_type, limit_tokens),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ropes=(rope,),
        layer_ropes=(0,) * n_layers,
        activation=fields.activation("hidden_act"),
        attention_scale=head_dim**-0.5,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        learned_sinks=True,
        experts=_experts(fields),
    )


def layer_tensors(geometry: Geometry) -> Mapping[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (geometry.hidden_size,),
        "post_attention_layernorm.weight": (geometry.hidden_size,),
        "self_attn.sinks": (geometry.query_heads,),
    }


def resident_norm_elements(geometry: Geometry) -> tuple[int, int]:
    return 0, 2 * geometry.hidden_size + geometry.query_heads


def _experts(fields: Fields) -> Experts:
    local, other = "num_local_experts", "num_experts"  # the class takes both names
    count = fields.integer(other if fields.has(other) and not fields.has(local) else local)
    chosen = fields.integer("num_experts_per_tok")
    if chosen > count:
        raise fields.wrong("num_experts_per_tok", f"{chosen} is more than {count}, all there are")
    return Experts(
        count=count,
        chosen=chosen,
        inner_size=fields.integer("intermediate_size"),
        scoring="softmax of chosen",
        swiglu_limit=fields.number("swiglu_limit"),
        fused=True,
    )


def _check_activation(fields: Fields) -> None:
    """The gate's slope is no setting of the experts; published models have one value."""
    slope = fields.number("swiglu_alpha")
    if slope != SWIGLU_SLOPE:
        raise UnsupportedModelError(
            f"swiglu_alpha {slope} is not supported; supported: {SWIGLU_SLOPE}"
        )
