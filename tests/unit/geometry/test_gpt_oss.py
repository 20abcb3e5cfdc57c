"""gpt-oss' published configurations, and what is refused of their like."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from holdover.codecs.base import kv_choice
from holdover.errors import ConfigError, UnsupportedModelError
from holdover.geometry.base import Rope, expected_tensors, read_geometry
from holdover.geometry.sizing import read_memory
from holdover.plan.sizing.cache import Cache
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window

YARN = {
    "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "attention_bias": True, "hidden_act": "silu", "initial_context_length": 4096,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_scaling": YARN,
    "rope_theta": 150000, "swiglu_limit": 7.0, "tie_word_embeddings": False,
}  # fmt: skip
LARGE = SMALL | {
    "num_hidden_layers": 36, "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip
MODELS = {"20b": SMALL, "120b": LARGE}
PARAMETERS = {"20b": 20_914_757_184, "120b": 116_829_156_672}


@pytest.mark.parametrize("name", MODELS)
def test_tensors_add_up_to_the_published_parameters(name: str) -> None:
    shapes = expected_tensors(read_geometry(MODELS[name]))
    assert sum(map(prod, shapes.values())) == PARAMETERS[name]


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_served_model_and_its_sizing_agree(kv: str) -> None:
    layout = CacheLayout.of(CacheSpec.of(read_geometry(LARGE).layers, 16), kv_choice(kv))
    sized = Cache.of(read_memory(LARGE).memories, kv)
    for n_tokens in (1, 16, 4097):
        held = layout.held_bytes(layout.peak_blocks(n_tokens, step_tokens=1))
        assert held == sized.held_bytes(n_tokens)


def test_what_is_read() -> None:
    geometry = read_geometry(SMALL)
    assert [layer.residency for layer in geometry.layers] == [Window(128), Full()] * 12
    assert geometry.max_context_tokens == 131072
    [rope] = geometry.ropes
    assert (rope.kind, rope.theta, rope.factor, rope.truncate) == ("yarn", 150000.0, 32.0, False)
    assert geometry.learned_sinks
    assert geometry.experts is not None
    assert (geometry.experts.count, geometry.experts.chosen) == (32, 4)


def test_what_a_config_leaves_out_is_the_class_own() -> None:
    """Checked against transformers' class."""
    from transformers import GptOssConfig

    left_out = ("layer_types", "rope_scaling", "rope_theta", "attention_bias", "swiglu_limit")
    config = {key: value for key, value in SMALL.items() if key not in left_out}
    written = GptOssConfig(**{key: config[key] for key in config if key != "model_type"}).to_dict()
    assert read_geometry(config) == read_geometry(written | {"dtype": None})
    assert read_geometry(config) == read_geometry(SMALL)
    renamed = {key: value for key, value in SMALL.items() if key != "num_local_experts"}
    assert read_geometry(renamed | {"num_experts": 32}) == read_geometry(SMALL)
    default = SMALL | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}
    assert read_geometry(default).ropes == (Rope("default", 150000.0, 64),)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"swiglu_alpha": 1.5}, "swiglu_alpha 1.5 is not supported; supported: 1.702"),
        ({"swiglu_limit": 0}, "swiglu_limit: 0 is not a positive number"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok: 33 is more than 32"),
        ({"num_local_experts": None}, "num_local_experts"),
        ({"layer_types": ["chunked_attention"] * 24}, "layer type chunked_attention"),
    ],
)
def test_what_cannot_be_served_is_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises((ConfigError, UnsupportedModelError), match=names):
        read_geometry(SMALL | changes)
