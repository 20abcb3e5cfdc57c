"""DeepSeek's published configurations, and what is refused of their like."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import pytest

from holdover.codecs.base import kv_choice, uniform
from holdover.errors import ConfigError, UnsupportedModelError
from holdover.geometry.base import expected_tensors, read_geometry
from holdover.geometry.sizing import read_memory
from holdover.plan.sizing.cache import Cache
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes, latent_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

YARN = {
    "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
    "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip
V2: dict[str, Any] = {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 5120,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 2,
    "n_routed_experts": 160, "routed_scaling_factor": 16.0, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
    "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1,
    "norm_topk_prob": False, "scoring_func": "softmax", "hidden_act": "silu",
    "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": YARN,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
LITE = V2 | {
    "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "routed_scaling_factor": 1.0, "q_lora_rank": None,
    "topk_method": "greedy", "n_group": 1, "topk_group": 1,
}  # fmt: skip
V3 = V2 | {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc", "topk_group": 4, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip
MODELS = {"V2": V2, "V2-Lite": LITE, "V3": V3}
PARAMETERS = {"V2": 235_741_434_880, "V2-Lite": 15_706_484_224, "V3": 671_026_419_200}


@pytest.mark.parametrize("name", MODELS)
def test_tensors_add_up_to_the_published_parameters(name: str) -> None:
    shapes = expected_tensors(read_geometry(MODELS[name]))
    assert sum(map(prod, shapes.values())) == PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv", ["bf16", "int8", "latent=int4,rope=bf16"])
def test_a_served_model_and_its_sizing_agree(name: str, kv: str) -> None:
    geometry = read_geometry(MODELS[name])
    layout = CacheLayout.of(CacheSpec.of(geometry.layers, 16), kv_choice(kv))
    sized = Cache.of(read_memory(MODELS[name]).memories, kv)
    for n_tokens in (1, 16, 4097):
        assert layout.logical_bytes(n_tokens) == sized.logical_bytes(n_tokens)
        held = layout.held_bytes(layout.peak_blocks(n_tokens, step_tokens=1))
        assert held == sized.held_bytes(n_tokens)


def test_a_latent_takes_576_elements_a_token_whatever_the_heads() -> None:
    layers = read_geometry(V2).layers
    assert layers == (LayerSpec(latent_planes(512, 64), Full()),) * 60
    layout = CacheLayout.of(CacheSpec.of(layers, 16), uniform("bf16"))
    assert layout.logical_bytes(1) == 60 * 576 * 2
    heads = (LayerSpec(attention_planes(128, 128), Full()),) * 60
    of_heads = CacheLayout.of(CacheSpec.of(heads, 16), uniform("bf16"))
    assert layout.logical_bytes(4096) < 0.1 * of_heads.logical_bytes(4096)


def test_scores_of_a_stretched_context_are_sharpened() -> None:
    magnitude = 0.1 * 0.707 * math.log(40) + 1
    geometry = read_geometry(V2)
    assert geometry.attention_scale == pytest.approx(192**-0.5 * magnitude**2)
    assert geometry.ropes[0].attention_factor == 1.0
    assert geometry.ropes[0].dim == 64
    plain = read_geometry(V2 | {"rope_scaling": None})
    assert plain.attention_scale == 192**-0.5
    assert geometry.max_context_tokens == plain.max_context_tokens == 163840


def test_which_layers_have_experts() -> None:
    experts = read_geometry(V3).experts
    assert experts is not None
    assert [experts.mixes(layer) for layer in range(5)] == [False, False, False, True, True]
    assert read_geometry(V2 | {"first_k_dense_replace": 60}).experts is None
    assert read_geometry(V2 | {"n_routed_experts": None}).experts is None


@pytest.mark.parametrize(
    ("config", "changes", "names"),
    [
        (V2, {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        (V3, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        (V2, {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        (V2, {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        (V2, {"n_group": 7}, "n_group: 7 groups of 160 experts"),
        (V2, {"topk_group": 9}, "topk_group: 9 is more than n_group 8"),
        (V2, {"n_group": 160}, "num_experts_per_tok: 6 is more than 3"),
        (V3, {"n_group": 256}, "n_group: 256 groups of 256 experts"),
        (V2, {"qk_rope_head_dim": 63}, "qk_rope_head_dim: 63 is odd"),
        (V2, {"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_what_cannot_be_served_is_named(
    config: dict[str, Any], changes: dict[str, Any], names: str
) -> None:
    with pytest.raises((ConfigError, UnsupportedModelError), match=names):
        read_geometry(config | changes)
