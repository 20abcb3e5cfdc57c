"""Configs as published, in both styles, and what is said about those that cannot be read."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from holdover.errors import ConfigError, UnsupportedModelError
from holdover.geometry.base import (
    Rope,
    expected_tensors,
    planned_weights_bytes,
    read_geometry,
    supported_architectures,
)
from holdover.spec.dtypes import DType
from holdover.spec.layers import attention_planes
from holdover.spec.residency import Full, Window

LLAMA31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL_01: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
# Most of the text part is left to the defaults of the config class, as published.
GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


def test_llama() -> None:
    geometry = read_geometry(LLAMA31_8B)
    assert {layer.residency for layer in geometry.layers} == {Full()}
    assert geometry.layers[0].planes == attention_planes(8, 128)
    assert (geometry.query_heads, geometry.kv_heads, geometry.head_dim) == (32, 8, 128)
    assert geometry.max_context_tokens == 131072
    assert geometry.stored_dtype == "bfloat16"
    assert geometry.ropes == (Rope("llama3", 500000.0, 128, 8.0, 8192),)
    # 8,030,261,248 parameters, as the model card counts them, and 64 frequencies.
    assert planned_weights_bytes(geometry, DType.BF16) == 8_030_261_248 * 2 + 64 * 4
    assert len(expected_tensors(geometry)) == 291


def test_transformers_5_style_is_the_same_geometry() -> None:
    scaling = LLAMA31_8B["rope_scaling"] | {"rope_theta": 500000.0}
    newer = without(LLAMA31_8B, "rope_scaling", "rope_theta", "torch_dtype")
    newer |= {"rope_parameters": scaling, "dtype": "bfloat16"}
    assert read_geometry(newer) == read_geometry(LLAMA31_8B)


def test_gemma3_styles_are_the_same_geometry() -> None:
    text = without(GEMMA3_4B["text_config"], "rope_scaling")
    text["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    text["layer_types"] = (kinds * 6)[:34]
    assert read_geometry(GEMMA3_4B | {"text_config": text}) == read_geometry(GEMMA3_4B)


def test_gemma3_wrapper_takes_the_class_defaults() -> None:
    geometry = read_geometry(GEMMA3_4B)
    assert Counter(layer.residency for layer in geometry.layers) == {Window(1024): 29, Full(): 5}
    assert geometry.layers[5].residency == geometry.layers[29].residency == Full()
    assert geometry.layers[0].planes == attention_planes(4, 256)
    assert geometry.vocab_size == 262208
    assert geometry.tied_embeddings
    assert geometry.attention_scale == 256**-0.5
    assert [rope.theta for rope in geometry.ropes] == [1_000_000.0, 10_000.0]
    assert [rope.factor for rope in geometry.ropes] == [8.0, 1.0]
    assert geometry.layer_ropes[:6] == (1, 1, 1, 1, 1, 0)
    assert geometry.architecture == "Gemma3ForConditionalGeneration"
    text = {**GEMMA3_4B["text_config"], "torch_dtype": "bfloat16"}
    alone = read_geometry(text)
    assert alone.architecture == "Gemma3ForCausalLM"
    assert alone.layers == geometry.layers


def test_gemma3_pattern() -> None:
    config = {"model_type": "gemma3_text", "sliding_window_pattern": 2, "num_hidden_layers": 4}
    residencies = [layer.residency for layer in read_geometry(config).layers]
    assert residencies == [Window(4096), Full(), Window(4096), Full()]


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, 32),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 32768}, 0),  # as long as the context: no window
        ({"sliding_window": 32767}, 32),
        ({"layer_types": ["full_attention", "sliding_attention"] * 16}, 16),
    ],
)
def test_mistral_windows(changes: dict[str, Any], windows: int) -> None:
    layers = read_geometry(MISTRAL_01 | changes).layers
    assert sum(isinstance(layer.residency, Window) for layer in layers) == windows


def test_mistral_without_the_field_has_the_class_default() -> None:
    layers = read_geometry(without(MISTRAL_01, "sliding_window")).layers
    assert {layer.residency for layer in layers} == {Window(4096)}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, 0),
        ({"use_sliding_window": True}, 0),  # no layer is at or past max_window_layers
        ({"use_sliding_window": True, "max_window_layers": 20, "sliding_window": 4096}, 8),
        ({"use_sliding_window": True, "max_window_layers": 20}, 0),  # window >= context
        ({"max_window_layers": 0, "sliding_window": 4096}, 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 4096,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 25,
            },
            3,
        ),
    ],
)
def test_qwen_windows(changes: dict[str, Any], windows: int) -> None:
    geometry = read_geometry(QWEN25_7B | changes)
    assert sum(isinstance(layer.residency, Window) for layer in geometry.layers) == windows
    assert geometry.qkv_bias
    assert not geometry.output_bias


def test_yarn_stretches_the_context() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    geometry = read_geometry(QWEN25_7B | {"rope_scaling": scaling})
    assert geometry.max_context_tokens == 131072
    assert geometry.ropes[0].attention_factor == pytest.approx(1.1386294)


def test_frequency_divisors_of_a_gguf_header() -> None:
    divisors = tuple(1.0 + n for n in range(64))
    config = LLAMA31_8B | {"rope_scaling": None, "rope_freq_factors": divisors}
    assert read_geometry(config).ropes[0].frequency_divisors == divisors
    with pytest.raises(ConfigError, match=r"rope_freq_factors.*63"):
        read_geometry(config | {"rope_freq_factors": divisors[1:]})


def test_qwen3_has_its_own_head_dim() -> None:
    config = QWEN25_7B | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    geometry = read_geometry(config | {"num_attention_heads": 32, "num_key_value_heads": 8})
    assert geometry.head_dim == 128
    assert geometry.qk_norm
    assert not geometry.qkv_bias
    assert geometry.query_width == 4096


def test_architecture_without_model_type() -> None:
    assert read_geometry(without(MISTRAL_01, "model_type")) == read_geometry(MISTRAL_01)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]},
        {"architectures": ["Mamba2ForCausalLM"]},
    ],
)
def test_unsupported_architecture_is_named_with_those_that_are(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="Mamba2ForCausalLM") as caught:
        read_geometry(config)
    assert all(name in str(caught.value) for name in supported_architectures())
    assert {"LlamaForCausalLM", "DeepseekV3ForCausalLM"} <= {*supported_architectures()}


def test_config_of_nothing() -> None:
    with pytest.raises(UnsupportedModelError, match="no model_type"):
        read_geometry({})


@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ],
)
def test_missing_field_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: is missing"):
        read_geometry(without(LLAMA31_8B, name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size.*'4096' is not a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers.*0 is not"),
        ({"num_hidden_layers": True}, "num_hidden_layers.*True is not"),
        ({"num_key_value_heads": 5}, "num_key_value_heads.*5 does not divide"),
        ({"head_dim": 63}, "head_dim.*63 is odd"),
        ({"rms_norm_eps": -1}, "rms_norm_eps.*not a positive number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings.*neither true nor false"),
        ({"rope_scaling": "llama3"}, "rope_scaling.*not an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor: is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor: is missing"),
        # Each of these was a traceback, or filled the memory.
        ({"num_hidden_layers": 10**9}, "num_hidden_layers.*the most is 10000"),
        ({"hidden_size": 10**400}, "hidden_size.*cannot be right"),
        ({"vocab_size": 1e300}, "vocab_size.*cannot be right"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps.*out of range"),
        ({"rope_theta": float("inf"), "rope_scaling": None}, "rope_theta.*out of range"),
        ({"rope_theta": float("nan"), "rope_scaling": None}, "rope_theta.*not a positive number"),
        ({"rope_freq_factors": 3}, "rope_freq_factors.*not a list"),
        ({"rope_freq_factors": ["x"]}, r"rope_freq_factors\[0\].*'x' is not a positive number"),
    ],
)
def test_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_geometry(LLAMA31_8B | changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA31_8B | {"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic.*yarn"),
        (LLAMA31_8B | {"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        (LLAMA31_8B | {"hidden_act": "relu2"}, "hidden_act 'relu2'.*silu"),
        (LLAMA31_8B | {"hidden_act": []}, r"hidden_act \[\].*silu"),
        (LLAMA31_8B | {"model_type": None, "architectures": 5}, "without a name"),
        (LLAMA31_8B | {"model_type": None, "architectures": [["x"]]}, "without a name"),
        (LLAMA31_8B | {"rope_parameters": {"partial_rotary_factor": 0.5}, "rope_scaling": None},
         "partial_rotary_factor"),
        (QWEN25_7B | {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 28},
         "chunked_attention"),
        (GEMMA3_4B["text_config"] | {"use_bidirectional_attention": True}, "bidirectional"),
    ],
)  # fmt: skip
def test_unsupported_feature_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_geometry(config)


@pytest.mark.parametrize("part", ["full_attention", "sliding_attention"])
def test_gemma3_with_damaged_rope_parameters(part: str) -> None:
    config = GEMMA3_4B["text_config"] | {"rope_parameters": {part: 5}}
    with pytest.raises(ConfigError, match=f"rope_parameters.{part}: 5 is not an object"):
        read_geometry(config)


def test_gemma3_wrapper_without_its_text() -> None:
    with pytest.raises(ConfigError, match="text_config"):
        read_geometry(without(GEMMA3_4B, "text_config"))


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys; from holdover.geometry.base import *; from holdover.spec.dtypes import DType;"
        "g = read_geometry({'model_type': 'gemma3_text'}); planned_weights_bytes(g, DType.BF16);"
        "expected_tensors(g); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
