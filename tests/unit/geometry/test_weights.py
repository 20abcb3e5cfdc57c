"""Parameters counted from a config against published counts, and the bytes of published forms."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdover.geometry.sizing.catalogue import find_model
from holdover.geometry.sizing.weights import Role, count_weights, form_of

TABLE = Path(__file__).parents[3] / "tools" / "catalogue_models.tsv"
# Published counts that include an image tower, which the config in the table does not describe.
TOWER_PARAMETERS = {"gemma-3-4b": 420_000_000, "gemma-3-12b": 422_000_000}

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
    "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False, "mlp_only_layers": [0],
}  # fmt: skip
EMBEDDING, ATTENTION = 64 * 1000, 2 * 64 * (64 + 2 * 32 + 64)
DENSE, EXPERT, ROUTER = 3 * 64 * 128, 3 * 64 * 32, 64 * 8


def published() -> list[Any]:
    """(config, parameters) of the catalogue's models whose config stands beside their count."""
    head, *lines = TABLE.read_text().splitlines()
    columns = head.split("\t")
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]
    return [
        pytest.param(
            json.loads(r["source"]),
            int(r["parameters"]) - TOWER_PARAMETERS.get(r["name"], 0),
            id=r["name"],
        )
        for r in rows
        if r["source"].startswith("{")
    ]


@pytest.mark.parametrize(("config", "total"), published())
def test_within_one_percent_of_what_was_published(config: dict[str, Any], total: int) -> None:
    found = count_weights(config)
    assert found is not None
    assert found.parameters.count == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(
    ("name", "published_active", "counts_embedding"),
    [
        ("gpt-oss-120b", 5.13e9, 0),
        ("gpt-oss-20b", 3.61e9, 0),
        ("deepseek-v3", 36.7e9, 0),  # 37B; the weights' own notes say 36.7B
        ("mixtral-8x7b", 12.9e9, 32_000 * 4096),
        ("qwen3-30b-a3b", 3.3e9, 151_936 * 2048),
        ("qwen3-235b-a22b", 22e9, 151_936 * 4096),
        ("kimi-k2", 32e9, 0),
        ("olmoe-1b-7b", 1.3e9, 50_304 * 2048),
        ("nemotron-3-nano-30b-a3b", 3.2e9, 0),
    ],
)
def test_what_a_token_reads_is_what_is_published_as_active(
    name: str, published_active: float, counts_embedding: int
) -> None:
    """The input embedding is one row and not counted, as gpt-oss counts; some count it in."""
    parameters = find_model(name).memory.parameters
    assert parameters is not None
    assert parameters.active + counts_embedding == pytest.approx(published_active, rel=0.02)


def test_the_input_embedding_is_not_read() -> None:
    dense = find_model("llama-3-8b").memory.parameters
    assert dense is not None
    assert dense.count - dense.active == pytest.approx(128_256 * 4096, rel=0.001)


def test_parts_are_those_of_the_config() -> None:
    found = count_weights(MOE)
    assert found is not None
    counts: Counter[Role] = Counter()
    for part in found.parts:
        counts[part.role] += part.count
    assert counts == {
        Role.EMBEDDING: EMBEDDING, Role.HEAD: EMBEDDING, Role.MIXER: ATTENTION, Role.DENSE: DENSE,
        Role.EXPERTS: 8 * EXPERT, Role.SMALL: ROUTER,
    }  # fmt: skip
    assert found.parameters.active == EMBEDDING + ATTENTION + DENSE + 2 * EXPERT + ROUTER


@pytest.mark.parametrize(
    ("quantised", "attention_bits", "dense_bits", "expert_bits"),
    [
        (None, 16, 16, 16),
        ({"quant_method": "fp8"}, 8, 8, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384, 8 + 32 / 16384,
         8 + 32 / 16384),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}, 16, 8, 8),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, 16, 16, 4.25),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.15625, 4.15625, 4.15625),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, 4.3125, 4.3125,
         4.3125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, 8, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, 4.5, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, 8, 8),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*", "lm_head"],
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32,
                                                    "symmetric": True}}}}, 16, 4.5, 4.5),
        ({"quant_algo": "NVFP4", "quant_method": "modelopt",
          "ignore": ["lm_head", "model.layers.0*", "model.layers.1.self_attn*"]}, 16, 16, 4.5),
        ({"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt", "quantized_layers": {
            "model.layers.1.mlp.experts.0.w1": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}}}, 16, 8, 4.5),
    ],
)  # fmt: skip
def test_only_what_is_quantised_shrinks(
    quantised: dict[str, Any] | None,
    attention_bits: float,
    dense_bits: float,
    expert_bits: float,
) -> None:
    found = count_weights(MOE)
    form = form_of(MOE | {"quantization_config": quantised}, "bfloat16")
    assert found is not None
    assert form is not None
    bits = 16 * (2 * EMBEDDING + ROUTER) + attention_bits * ATTENTION + dense_bits * DENSE
    assert form.n_bytes(found)[0] == pytest.approx((bits + expert_bits * 8 * EXPERT) / 8, abs=1)
    assert form.is_quantised is (quantised is not None)


@pytest.mark.parametrize(
    "quantised",
    [{"quant_method": "aqlm"}, {"quant_method": "gptq", "bits": 5}, {"quant_method": "hqq"},
     {"quant_method": "compressed-tensors", "config_groups": {}}, {"bits": "4"}],
)  # fmt: skip
def test_a_form_that_is_not_known_is_not_guessed(quantised: dict[str, Any]) -> None:
    assert form_of(MOE | {"quantization_config": quantised}, "bfloat16") is None


@pytest.mark.parametrize(
    ("name", "kind", "published_bytes"),
    [
        # Sizes of the published safetensors files; DeepSeek's also hold an MTP layer.
        ("gpt-oss-120b", "mxfp4", 65_248_815_744),
        ("gpt-oss-20b", "mxfp4", 13_761_264_768),
        ("kimi-k2", "fp8", 1.03e12),
        ("kimi-k2.6", "int4", 595e9),
    ],
)
def test_published_forms_of_the_catalogue(name: str, kind: str, published_bytes: float) -> None:
    model = find_model(name)
    assert model.weights_format == kind
    assert model.checkpoint_bytes == pytest.approx(published_bytes, rel=0.01)
    assert model.active_bytes is not None
    assert model.active_bytes < model.checkpoint_bytes / 2


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "zamba2", "num_hidden_layers": 54, "hidden_size": 2560},
        {"model_type": "gemma3n_text", "num_hidden_layers": 30, "hidden_size": 2048},
        {"model_type": "xlstm", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 50304},
        # The class's own width is another size's: it is not taken.
        {"model_type": "olmo3", "num_hidden_layers": 64, "hidden_size": 5120, "vocab_size": 100278,
         "num_attention_heads": 40, "num_key_value_heads": 8},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_what_is_not_known_is_not_guessed(config: dict[str, Any]) -> None:
    assert count_weights(config) is None
