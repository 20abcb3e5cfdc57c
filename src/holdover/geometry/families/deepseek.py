"""DeepSeek-V2, V2-Lite and V3: latent attention, and experts after some dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.errors import UnsupportedModelError
from holdover.geometry._fields import MAX_LAYERS, Fields
from holdover.geometry._layers import common_numbers
from holdover.geometry._rope import (
    DEFAULT_THETA,
    context_limit,
    read_rope,
    scaling_parameters,
    stretch_magnitude,
)
from holdover.geometry.base import Geometry, Rope
from holdover.geometry.experts import Experts
from holdover.geometry.latent import Latent

MODEL_TYPES = {"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}

# What transformers' config classes assume of fields that a config leaves out. Sizes have no
# default here: a config without them is damaged.
_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": DEFAULT_THETA}
_COMMON |= {"moe_layer_freq": 1}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": _COMMON
    | {"topk_method": "greedy", "scoring_func": "softmax", "routed_scaling_factor": 1.0}
    | {"first_k_dense_replace": 0, "n_shared_experts": 2},
    "deepseek_v3": _COMMON
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.5}
    | {"norm_topk_prob": True, "rope_interleave": True, "n_group": 8, "topk_group": 4}
    | {"first_k_dense_replace": 3, "n_shared_experts": 1},
}
_SERVED: dict[str, dict[str, tuple[Any, ...]]] = {
    "deepseek_v2": {"topk_method": ("greedy", "group_limited_greedy"), "scoring_func": ("softmax",)}
    | {"norm_topk_prob": (None, False), "mlp_bias": (None, False), "moe_layer_freq": (1,)},
    "deepseek_v3": {"topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",)}
    | {"moe_layer_freq": (1,)},
}


def read(config: Mapping[str, Any], model_type: str) -> Geometry:
    fields = Fields(config, _DEFAULTS[model_type])
    for name, served in _SERVED[model_type].items():
        if fields.get(name) not in served:
            raise UnsupportedModelError(
                f"{name} {fields.get(name)!r} is not supported for {model_type}; "
                f"supported: {', '.join(str(value) for value in served)}"
            )
    context_tokens = fields.integer("max_position_embeddings")
    n_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    query_heads = fields.integer("num_attention_heads")
    latent = _latent(fields, model_type)
    settings = scaling_parameters(fields)
    theta = fields.number("rope_theta")
    rope = read_rope(settings, theta, latent.rope_dim, context_tokens, "rope_parameters.")
    limit_tokens = context_limit(rope, context_tokens)
    attention_bias = fields.flag("attention_bias")
    return Geometry(
        family="deepseek",
        architecture=MODEL_TYPES[model_type],
        **common_numbers(fields, config, model_type, limit_tokens),
        query_heads=query_heads,
        kv_heads=1,
        head_dim=latent.head_dim,
        ropes=(rope,),
        layer_ropes=(0,) * n_layers,
        activation=fields.activation("hidden_act"),
        attention_scale=_scale(latent, rope, settings),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        latent=latent,
        experts=_experts(fields, model_type, n_layers),
    )


def layer_tensors(geometry: Geometry) -> Mapping[str, tuple[int, ...]]:
    assert geometry.latent is not None
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (geometry.hidden_size,),
        "post_attention_layernorm.weight": (geometry.hidden_size,),
        "self_attn.kv_a_layernorm.weight": (geometry.latent.rank,),
    }
    if geometry.latent.query_rank:
        shapes["self_attn.q_a_layernorm.weight"] = (geometry.latent.query_rank,)
    return shapes


def resident_norm_elements(geometry: Geometry) -> tuple[int, int]:
    assert geometry.latent is not None
    return 2 * geometry.hidden_size + geometry.latent.rank + geometry.latent.query_rank, 0


def _latent(fields: Fields, model_type: str) -> Latent:
    direct = "q_lora_rank" in fields.values and not fields.has("q_lora_rank")
    rope_dim = fields.integer("qk_rope_head_dim")
    if rope_dim % 2:
        raise fields.wrong("qk_rope_head_dim", f"{rope_dim} is odd; rotary positions need pairs")
    return Latent(
        query_rank=0 if direct else fields.integer("q_lora_rank"),
        rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim"),
        interleaved=model_type == "deepseek_v2" or fields.flag("rope_interleave"),
    )


def _scale(latent: Latent, rope: Rope, settings: Mapping[str, Any]) -> float:
    """Stretched scores are sharpened: `mscale_all_dim` acts on queries and keys, so twice."""
    scale: float = latent.head_dim**-0.5
    stated = Fields(settings, {}, "rope_parameters.")
    if rope.kind != "default" and stated.get("mscale_all_dim"):
        scale *= stretch_magnitude(rope.factor, stated.number("mscale_all_dim")) ** 2
    return scale


def _experts(fields: Fields, model_type: str, n_layers: int) -> Experts | None:
    first_layer = fields.get("first_k_dense_replace") or 0
    if first_layer:
        first_layer = fields.integer("first_k_dense_replace")
    if not fields.has("n_routed_experts") or first_layer >= n_layers:
        return None
    count, inner = fields.integer("n_routed_experts"), fields.integer("moe_intermediate_size")
    second = model_type == "deepseek_v2"
    grouped = not second or fields.get("topk_method") == "group_limited_greedy"
    experts = Experts(
        count=count,
        chosen=fields.integer("num_experts_per_tok"),
        inner_size=inner,
        shared_inner_size=inner * fields.integer("n_shared_experts"),
        first_layer=first_layer,
        scoring="softmax" if second else "sigmoid",
        groups=fields.integer("n_group", 1) if grouped else 1,
        chosen_groups=fields.integer("topk_group", 1) if grouped else 1,
        group_best=1 if second else 2,
        normalised=not second and fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        choice_bias=not second,
    )
    _check_groups(fields, experts)
    return experts


def _check_groups(fields: Fields, experts: Experts) -> None:
    e = experts
    if e.count % e.groups or (e.groups > 1 and e.count // e.groups < e.group_best):
        raise fields.wrong("n_group", f"{e.groups} groups of {e.count} experts cannot be right")
    if e.chosen_groups > e.groups:
        raise fields.wrong("topk_group", f"{e.chosen_groups} is more than n_group {e.groups}")
    most = e.count // e.groups * e.chosen_groups
    if e.chosen > most:
        raise fields.wrong("num_experts_per_tok", f"{e.chosen} is more than {most}, all there are")
