"""Reading of configs beyond the golden table: served families, assumptions, refusals, GGUF, MTP."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

from holdover.codecs.base import uniform
from holdover.errors import ConfigError
from holdover.geometry.base import read_geometry
from holdover.geometry.sizing import read_gguf_memory, read_memory
from holdover.plan.sizing.cache import Cache
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window
from holdover.weights import open_checkpoint

BF16 = uniform("bf16")
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN = LLAMA | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096,
                "max_window_layers": 20}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "num_nextn_predict_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize("config", [LLAMA, GEMMA, QWEN, MISTRAL], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("n_tokens", [1, 511, 512, 513, 4097, 32768])
def test_a_served_model_and_its_sizing_agree(config: dict[str, Any], n_tokens: int) -> None:
    layers = read_geometry(config).layers
    layout = CacheLayout.of(CacheSpec.of(layers, 16), BF16)
    memories = read_memory(config).memories
    assert Cache.of(memories, "bf16").logical_bytes(n_tokens) == layout.read_bytes(n_tokens)
    for memory in memories:
        for layer in memory.layers:
            assert layers[layer].planes == memory.planes
            assert layers[layer].residency == memory.residency


def test_what_a_file_does_not_state_is_listed() -> None:
    memory = read_memory(GEMMA)
    assert {a.field for a in memory.assumptions} >= {"sliding_window_pattern"}
    assert [type(m.residency) for m in memory.memories] == [Window, Full]
    assert read_memory(LLAMA).memories[0].planes[0].heads == 8
    without_heads = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    listed = {a.field: a.value for a in read_memory(without_heads).assumptions}
    assert listed["num_key_value_heads"] == "32"


def test_assume_replaces_a_missing_field_and_is_listed() -> None:
    unknown = {
        "model_type": "brand_new", "num_attention_heads": 8, "num_key_value_heads": 8,
        "hidden_size": 512,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"num_hidden_layers.*--assume num_hidden_layers=VALUE"):
        read_memory(unknown)
    memory = read_memory(unknown, assume={"num_hidden_layers": "12"})
    assert memory.memories[0].layers == tuple(range(12))
    sources = {a.field: a.source for a in memory.assumptions}
    assert sources["num_hidden_layers"] == "--assume"
    assert "model_type" in sources


@pytest.mark.parametrize(
    "field",
    ["retention_heads", "kv_cache_groups", "ssm_rank", "sliding_stride", "compress_block",
     "memory_tokens", "share_kv_every", "layer_kinds_pattern"],
)  # fmt: skip
def test_an_unknown_field_that_may_change_the_cache_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_memory(LLAMA | {field: 4})
    assert caught.value.field == field
    assert read_memory(LLAMA | {field: 4}, assume={field: "ignored"}).memories
    assert read_memory(LLAMA | {field: None}).memories


def test_an_unknown_type_with_a_window_is_not_guessed() -> None:
    with pytest.raises(ConfigError, match=r"sliding_window.*a type that is not known"):
        read_memory(LLAMA | {"model_type": "brand_new", "sliding_window": 4096})


def test_an_unknown_kind_of_layer_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"layer_types.*'holographic'"):
        read_memory(LLAMA | {"layer_types": ["holographic"] * 32})


def test_two_names_of_one_thing_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        read_memory(LLAMA | {"n_head_kv": 4})


def test_layers_that_predict_further_tokens_are_an_option() -> None:
    assert len(read_memory(DEEPSEEK).memories) == 1
    plain, extra = read_memory(DEEPSEEK, mtp=True).memories
    assert (len(plain.layers), extra.layers, extra.label) == (61, (61,), "mla (mtp)")


def test_blocks_found_by_search_say_their_own_heads() -> None:
    def block(group: int | None) -> dict[str, Any]:
        return {"attention": {"n_heads_in_group": group, "no_op": group is None}}

    config = LLAMA | {
        "model_type": "nemotron-nas", "num_hidden_layers": 4, "num_key_value_heads": None,
        "block_configs": [block(8), block(None), block(16), block(8)],
    }  # fmt: skip
    memories = read_memory(config).memories
    assert [(m.planes[0].heads, m.layers) for m in memories] == [(4, (0, 3)), (2, (2,))]
    config["block_configs"] = [*config["block_configs"][:3], {"attention": {}}]
    with pytest.raises(ConfigError, match=r"block_configs\[3\].attention.n_heads_in_group"):
        read_memory(config)


@pytest.mark.parametrize("model", ["smollm2", "gemma3-270m"])
def test_a_gguf_header_sizes_as_the_engine_reads_it(model: str) -> None:
    checkpoint = open_checkpoint(model)
    header = _header(checkpoint.path)
    elements = {tensor.name: prod(tensor.shape) for tensor in header.tensors}
    memory = read_gguf_memory(header.metadata, tensor_elements=elements)
    geometry = read_geometry(checkpoint.config)
    layout = CacheLayout.of(CacheSpec.of(geometry.layers, 16), BF16)
    assert Cache.of(memory.memories, "bf16").logical_bytes(8000) == layout.read_bytes(8000)
    assert memory.parameters is not None
    assert memory.parameters.source == "file"
    assert memory.parameters.count == sum(elements.values())


def _header(path: Path) -> Any:
    from holdover.weights._gguf_header import read_header

    return read_header(path)


def _gguf(architecture: str, **keys: Any) -> dict[str, Any]:
    named = {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return {"general.architecture": architecture} | named


COMMON = {"embedding_length": 4096, "attention__head_count": 32}


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        (_gguf("deepseek2", block_count=3, attention__kv_lora_rank=512, rope__dimension_count=64,
               **COMMON), {"mla": 3}),
        (_gguf("glm4moe", block_count=47, nextn_predict_layers=1, attention__head_count_kv=8,
               **COMMON), {"full": 46}),
        (_gguf("gemma2", block_count=4, attention__head_count_kv=4, **COMMON,
               attention__sliding_window=4096), {"window 4096": 2, "full": 2}),
        (_gguf("jamba", block_count=4, attention__head_count_kv=[0, 0, 8, 0], **COMMON,
               ssm__conv_kernel=4, ssm__inner_size=8192, ssm__state_size=16),
         {"full": 1, "mamba": 3, "mamba convolution": 3}),
        (_gguf("lfm2", block_count=3, attention__head_count_kv=[0, 8, 0], shortconv__l_cache=3,
               **COMMON), {"full": 1, "convolution": 2}),
        (_gguf("deci", block_count=3, attention__head_count_kv=[8, 0, 4], **COMMON), {"full": 2}),
    ],
    ids=lambda value: value.get("general.architecture", ""),
)  # fmt: skip
def test_gguf_architectures(metadata: dict[str, Any], labels: dict[str, int]) -> None:
    found: dict[str, int] = {}
    for memory in read_gguf_memory(metadata).memories:
        found[memory.label] = found.get(memory.label, 0) + len(memory.layers)
    assert found == labels


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        (_gguf("unheard-of", block_count=3), "general.architecture"),
        (_gguf("llama", block_count=3, attention__fold=2, **COMMON), "llama.attention.fold"),
        (_gguf("llama", attention__head_count=32), "llama.block_count"),
        (_gguf("deepseek2", block_count=3, attention__kv_lora_rank=512, **COMMON),
         "deepseek2.rope.dimension_count"),
        (_gguf("qwen3", block_count=3, attention__sliding_window=64, **COMMON),
         "qwen3.attention.sliding_window_pattern"),
        (_gguf("llama", block_count=3, attention__head_count_kv=-8, **COMMON),
         "llama.attention.head_count_kv"),
    ],
)  # fmt: skip
def test_a_gguf_header_is_refused_by_its_own_key(metadata: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gguf_memory(metadata)
    assert caught.value.field == field
