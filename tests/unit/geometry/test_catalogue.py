"""The built-in catalogue: names, bytes against independent numbers, and that it is up to date."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from holdover.codecs.base import uniform
from holdover.errors import ConfigError
from holdover.geometry.sizing.catalogue import (
    catalogue_names,
    find_model,
    in_catalogue,
    pack_memory,
)
from holdover.spec.memory import Kind, StoredMemory

TOOL = Path(__file__).parents[3] / "tools" / "make_catalogue.py"
KV_BYTES_AT_32768 = {  # attention alone, 16 bit: by an independent calculator
    "llama-3.1-8b": 4_294_967_296,
    "gemma-3-27b": 3_120_562_176,
    "deepseek-v3": 2_302_672_896,
    "gpt-oss-120b": 1_212_678_144,
    "qwen3-32b": 8_589_934_592,
    "llama-4-scout": 2_818_572_288,
    "qwen3-next-80b-a3b": 805_306_368,
    "jamba-1.5-mini": 536_870_912,
    "kimi-linear-48b-a3b": 264_241_152,
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_catalogue", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kv_bytes(name: str, n_tokens: int, kind: Kind = Kind.ATTENTION) -> int:
    memories = find_model(name).memory.memories
    codec = uniform("bf16")
    return sum(
        StoredMemory.of(m, codec).logical_bytes(n_tokens) for m in memories if m.kind is kind
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3-8b", "llama-3-8b"),
        ("LLAMA-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("llama3:8b", "llama-3-8b"),
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("llama3.3:70b", "llama-3.3-70b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("kimi-k2-instruct", "kimi-k2"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-oss:20b", "gpt-oss-20b"),
        ("mixtral", "mixtral-8x7b"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert in_catalogue(text)
    assert find_model(text).name == name


def test_an_unknown_name_lists_those_like_it() -> None:
    assert not in_catalogue("llama-3-9b")
    with pytest.raises(ConfigError, match=r"model: no 'llama-3-9b' .*did you mean .*llama-3-8b"):
        find_model("llama-3-9b")
    with pytest.raises(ConfigError, match=r"it has \d+ models, for example"):
        find_model("abacus")


def test_every_model_is_found_by_all_its_names(tool: ModuleType) -> None:
    with tool.MODELS.open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row["name"] for row in rows] == list(catalogue_names())
    assert len(rows) >= 60
    for row in rows:
        names = [row["name"], row["repository"], *row["aliases"].split(";")]
        for name in filter(None, map(str.strip, names)):
            assert find_model(name).name == row["name"], name
        assert row["provenance"].startswith("config: "), row["name"]


def test_what_needs_no_config_file_is_up_to_date(tool: ModuleType) -> None:
    """Models given by their published values are read anew; the rest needs the script's folder."""
    table = json.loads(tool.TABLE.read_text())
    with tool.MODELS.open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    here = [row for row in rows if row["source"].startswith("{")]
    assert len(here) > 30
    for row in here:
        fresh = json.loads(json.dumps(tool._entry(row, Path("/nowhere"))))
        assert table[row["name"]] == fresh, row["name"]


def test_packing_loses_nothing(tool: ModuleType) -> None:
    table = json.loads(tool.TABLE.read_text())
    for name in catalogue_names():
        memory, mtp = find_model(name).memory, find_model(name, mtp=True).memory
        packed = json.loads(json.dumps(pack_memory(memory, mtp)))
        assert packed == {key: table[name][key] for key in packed}


@pytest.mark.parametrize("name", KV_BYTES_AT_32768)
def test_bytes_are_those_of_an_independent_calculator(name: str) -> None:
    assert kv_bytes(name, 32_768) == KV_BYTES_AT_32768[name]


def test_the_well_known_table_of_llama_3_8b() -> None:
    assert kv_bytes("llama-3-8b", 1) == 131_072
    assert kv_bytes("llama-3-8b", 2_000) == 262_144_000
    assert kv_bytes("llama-3-8b", 128_000) == 16_777_216_000
    model = find_model("llama-3-8b").memory
    assert model.max_context_tokens == 8_192
    assert model.parameters is not None
    assert model.parameters.count == 8_030_261_248
    assert model.parameters.source == "catalogue"


def test_layers_of_speculation_are_an_option() -> None:
    plain, mtp = find_model("deepseek-v3").memory, find_model("deepseek-v3", mtp=True).memory
    assert [len(m.layers) for m in plain.memories] == [61]
    assert sum(len(m.layers) for m in mtp.memories) == 62
    assert find_model("llama-3-8b", mtp=True).memory == find_model("llama-3-8b").memory


def test_counts_are_plausible() -> None:
    for name in catalogue_names():
        model = find_model(name)
        parameters = model.memory.parameters
        assert parameters is not None
        assert 0 < parameters.active <= parameters.count, name
        sizes = re.findall(r"(?<![a-z\d.x])([\d.]+)([bm])(?=-|$)", name)
        if sizes:  # the size in a name is the size of the model
            named = max(float(n) * {"b": 1e9, "m": 1e6}[unit] for n, unit in sizes)
            assert named == pytest.approx(parameters.count, rel=0.27), name
        if model.checkpoint_bytes:
            assert model.weights_format is not None
            assert model.checkpoint_bytes < 2 * parameters.count
