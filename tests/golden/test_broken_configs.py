"""A damaged config is refused by a field's name, or what it was taken for is listed; never silent.

Every field that sizing reads of every kind of published model is removed, set to null, negated,
made huge and given the wrong type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdover.errors import ConfigError
from holdover.geometry.sizing import ModelMemory, read_memory
from holdover.geometry.sizing.weights import count_weights, form_of
from holdover.plan.sizing.cache import Cache

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "models.json").read_text())

# Names of the model, which no byte depends on, and its longest context.
_FREE = {"architectures", "max_position_embeddings", "n_positions", "seq_length", "max_seq_len",
         "n_ctx", "max_target_positions"}  # fmt: skip


def one_of_each_kind() -> list[dict[str, Any]]:
    by_type = {_type_of(model["config"]): model for model in MODELS}
    return list(by_type.values())


def _type_of(config: Mapping[str, Any]) -> str:
    text = config.get("text_config")
    return f"{config.get('model_type')} {text.get('model_type') if text else ''}"


def fields(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from fields(value, (*path, name))
        if name not in _FREE:
            yield (*path, name)


def replaced(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at `path`, or without it where that is Ellipsis."""
    broken = copy.deepcopy(dict(config))
    part = broken
    for name in path[:-1]:
        part = part[name]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return broken


def sized(config: Mapping[str, Any]) -> ModelMemory | None:
    try:
        return read_memory(config)
    except ConfigError as error:
        if not error.field:
            raise
        return None


def totals(memory: ModelMemory) -> list[dict[Any, int]]:
    cache = Cache.of(memory.memories, "bf16")
    return [cache.logical_by_kind(n) for n in (100, 32768, 200_000)]


@pytest.mark.parametrize("model", one_of_each_kind(), ids=lambda m: str(m["model"]))
def test_a_field_that_is_missing_or_null_is_refused_or_listed(model: dict[str, Any]) -> None:
    config = model["config"]
    whole = read_memory(config)
    for path in fields(config):
        for value in (..., None):
            memory = sized(replaced(config, path, value))
            if memory is None or totals(memory) == totals(whole):
                continue
            new = set(memory.assumptions) - set(whole.assumptions)
            null_means_none = value is None and _null_is_a_value(path[-1])
            assert new or null_means_none, f"{path} {value} gave another number silently"


@pytest.mark.parametrize("model", one_of_each_kind(), ids=lambda m: str(m["model"]))
def test_a_field_with_an_impossible_value_is_refused(model: dict[str, Any]) -> None:
    config = model["config"]
    whole = totals(read_memory(config))
    for path in fields(config):
        value = config
        for name in path:
            value = value[name]
        for wrong in _impossible(value):
            memory = sized(replaced(config, path, wrong))
            assert memory is None or totals(memory) == whole, f"{path} = {wrong!r:.60}"


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 12},
}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "num_hidden_layers"),
        (LLAMA | {"model_type": 5}, "model_type"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (LLAMA | {"num_key_value_heads": 7}, "num_key_value_heads"),
        (LLAMA | {"num_key_value_heads": [8] * 31}, "num_key_value_heads"),
        (LLAMA | {"head_dim": 10**12}, "head_dim"),
        (LLAMA | {"hidden_size": 4097}, "num_attention_heads"),
        (LLAMA | {"layer_types": ["full_attention"] * 31}, "layer_types"),
        (LLAMA | {"layer_types": ["full_attention"] * 64}, "layer_types"),
        (LLAMA | {"layer_types": {"0": "full_attention"}}, "layer_types"),
        (LLAMA | {"attention_chunk_size": 8192}, "attention_chunk_size"),
        (LLAMA | {"max_position_embeddings": float("nan")}, "max_position_embeddings"),
        (LLAMA | {"n_layer": 16}, "num_hidden_layers"),
        (LLAMA | {"per_layer_config": {"a": {}}}, "per_layer_config"),
        (GEMMA | {"text_config": []}, "text_config"),
        (GEMMA | {"llm_config": {"model_type": "llama"}}, "text_config"),
    ],
)  # fmt: skip
def test_an_odd_config_is_refused_by_the_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_memory(config)
    assert caught.value.field == field


def test_an_mtp_layer_may_have_an_entry_too() -> None:
    kinds = {"layer_types": ["full_attention"] * 33, "num_nextn_predict_layers": 1}
    assert read_memory(LLAMA | kinds).memories == read_memory(LLAMA).memories


@pytest.mark.parametrize(
    "odd",
    [
        {"vocab_size": "128k"}, {"vocab_size": -4}, {"intermediate_size": "x"},
        {"intermediate_size": [1, 2]}, {"tie_word_embeddings": "yes"},
        {"num_experts": "8"}, {"num_experts": 8, "num_experts_per_tok": -4},
    ],
    ids=str,
)  # fmt: skip
def test_odd_widths_leave_the_weights_uncounted(odd: dict[str, Any]) -> None:
    assert count_weights(LLAMA) is not None
    assert count_weights(LLAMA | odd) is None


@pytest.mark.parametrize(
    "quantised",
    [["x"], {"quant_method": 7, "bits": "four"}, {"config_groups": {"g": 5}},
     {"quant_method": "fp8", "weight_block_size": [0, 0]},
     {"quant_method": "gptq", "bits": 4, "group_size": 0}],
    ids=str,
)  # fmt: skip
def test_odd_quantisation_is_of_no_known_form(quantised: Any) -> None:
    assert form_of(LLAMA | {"quantization_config": quantised}, "bfloat16") is None


def test_a_tower_that_is_not_described_is_named() -> None:
    for odd in ("big", {"hidden_size": -1, "num_hidden_layers": 3}, {}):
        found = count_weights(LLAMA | {"vision_config": odd})
        assert found is not None
        assert found.missing == ("vision_config",)


def _impossible(value: Any) -> Iterator[Any]:
    if not isinstance(value, Mapping):
        yield {"of": "another type"}
    if isinstance(value, bool):
        yield from ("yes", 7, [True])
    elif isinstance(value, int):
        yield from (-value - 1, 10**15, 0.5, str(value), [value], True)
    elif isinstance(value, list):
        yield from ([*value, "no such kind"] * 2, -3)
        if len(value) > 3 and isinstance(value[0], str):
            yield value[:-1]
        if value and isinstance(value[0], int):
            yield [-1 - n if isinstance(n, int) else n for n in value]
    elif isinstance(value, str):
        yield from (5, [value])


def _null_is_a_value(name: str) -> bool:
    """Fields for which null is a published way of saying "not used"."""
    return "window" in name or "chunk" in name or name in (
        "num_key_value_heads", "head_dim", "num_kv_shared_layers", "global_head_dim", "conv_window",
        "attention_other_setting", "swa_head_dim", "swa_num_key_value_heads", "layer_types",
        "num_global_key_value_heads", "n_head_kv", "attention_k_eq_v", "use_sliding_window",
    )  # fmt: skip
