"""A type that the table of defaults does not know: what transformers says, or what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.geometry.sizing import read_memory
from holdover.spec.residency import Full, Window

PLAIN: dict[str, Any] = {
    "model_type": "brand_new", "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 2, "hidden_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip
WINDOWS = ["full_attention", "sliding_attention"] * 6


@pytest.fixture
def newer_type() -> Any:
    """A type that a newer transformers would have: its class states what its files leave out."""
    from transformers import Qwen3Config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    class NewerConfig(Qwen3Config):  # type: ignore[misc]
        model_type = "qwen_of_next_year"

    CONFIG_MAPPING.register("qwen_of_next_year", NewerConfig)
    yield "qwen_of_next_year"
    del CONFIG_MAPPING._extra_content["qwen_of_next_year"]


def test_plain_attention_is_taken_at_its_word_and_listed() -> None:
    memory = read_memory(PLAIN)
    assert [(m.planes[0].heads, m.planes[0].dim, len(m.layers)) for m in memory.memories] == [
        (2, 64, 12)
    ]
    assert "model_type" in {a.field for a in memory.assumptions}


def test_layers_that_the_file_lists_are_what_they_say() -> None:
    config = PLAIN | {"layer_types": WINDOWS, "sliding_window": 512}
    found = {type(m.residency): len(m.layers) for m in read_memory(config).memories}
    assert found == {Full: 6, Window: 6}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_lora_rank", 512), ("q_lora_rank", 1536), ("ssm_state_size", 128), ("v_head_dim", 64),
        ("mamba_d_conv", 4), ("conv_kernel", 4), ("linear_num_key_heads", 16),
        ("hybrid_override_pattern", "M*M*M*M*M*M*"), ("layers_pattern", "LG"),
        ("num_hash_layers", 3), ("sliding_window", 4096), ("index_head_dim", 128),
        ("num_kv_shared_layers", 4), ("attention_chunk_size", 8192), ("no_rope_layers", [1] * 12),
        ("compress_ratios", [4] * 12), ("is_encoder_decoder", True), ("global_head_dim", 512),
        ("layer_types", ["linear_attention", "full_attention"] * 6), ("recurrent_width", 5),
        ("layer_types", ["holographic"] * 12), ("attn_layer_period", 4), ("block_types", ["M"]),
    ],
)  # fmt: skip
def test_signs_of_another_memory_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read_memory(PLAIN | {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads",
                                   "num_key_value_heads", "hidden_size"])  # fmt: skip
def test_a_missing_number_is_refused_and_can_be_given(field: str) -> None:
    config = {name: value for name, value in PLAIN.items() if name != field}
    with pytest.raises(ConfigError, match=f"{field}.*--assume {field}=VALUE"):
        read_memory(config)
    memory = read_memory(config, assume={field: str(PLAIN[field])})
    assert memory.memories == read_memory(PLAIN).memories
    assert ("--assume", field) in {(a.source, a.field) for a in memory.assumptions}


def test_a_type_that_it_works_like_can_be_given() -> None:
    config = PLAIN | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    memory = read_memory(config, assume={"model_type": "deepseek_v3"})
    assert [m.label for m in memory.memories] == ["mla"]
    assert ("model_type", "--assume") in {(a.field, a.source) for a in memory.assumptions}


def test_what_the_installed_transformers_says_is_an_assumption(newer_type: str) -> None:
    config = {name: PLAIN[name] for name in ("num_hidden_layers", "num_attention_heads")}
    memory = read_memory(config | {"model_type": newer_type, "num_key_value_heads": 4})
    [stored] = memory.memories
    assert (stored.planes[0].heads, stored.planes[0].dim) == (4, 128)  # head_dim of Qwen3Config
    sources = {a.field: a.source for a in memory.assumptions}
    assert "transformers" in sources["head_dim"]
    assert "model_type" in sources


def test_what_the_class_derives_from_the_file_is_taken(newer_type: str) -> None:
    config = PLAIN | {
        "model_type": newer_type, "use_sliding_window": True, "sliding_window": 512,
        "max_window_layers": 6,
    }  # fmt: skip
    found = {type(m.residency): len(m.layers) for m in read_memory(config).memories}
    assert found == {Full: 6, Window: 6}


def test_values_that_the_class_refuses_are_refused(newer_type: str) -> None:
    with pytest.raises(ConfigError, match="refuses the file"):
        read_memory(PLAIN | {"model_type": newer_type, "hidden_size": "wide"})


def test_without_transformers_the_file_must_state_all() -> None:
    """And a known type never imports it."""
    code = f"""
import sys
sys.modules["transformers"] = None
from holdover.errors import ConfigError
from holdover.geometry.sizing import read_memory
config = {PLAIN!r}
for model_type in ("llama", "brand_new"):
    print(len(read_memory(config | {{"model_type": model_type}}).memories))
try:
    read_memory({{**config, "num_key_value_heads": None, "kv_lora_rank": 4}})
except ConfigError as error:
    print(error.field)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "kv_lora_rank"]
