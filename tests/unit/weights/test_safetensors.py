"""Safetensors folders of tiny transformers models, and every kind of damage to one."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SiglipVisionConfig,
)

from holdover.errors import HoldoverError, ModelFileError, UnsupportedModelError
from holdover.geometry.base import read_geometry
from holdover.weights import open_checkpoint

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma3_text": Gemma3TextConfig,
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"], ids=["single", "sharded"])
def test_families_load_as_saved(tmp_path: Path, family: str, shard_size: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**SIZES))
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    checkpoint = open_checkpoint(tmp_path)
    expected = model.state_dict()
    if checkpoint.config["tie_word_embeddings"]:
        expected.pop("lm_head.weight")
    assert set(checkpoint.tensors) == set(expected)
    for name, values in expected.items():
        assert checkpoint.tensors[name].shape == tuple(values.shape)
        assert checkpoint.tensors[name].n_elements == values.numel()
        assert torch.equal(checkpoint.load(name, torch.float32), values), name
        assert checkpoint.load(name, torch.bfloat16).dtype == torch.bfloat16
    assert checkpoint.config["model_type"] == family
    thetas = [rope.theta for rope in read_geometry(checkpoint.config).ropes]
    local = family == "gemma3_text"
    assert thetas == ([1e6, 1e4] if local else [model.config.rope_parameters["rope_theta"]])


def multimodal() -> Gemma3ForConditionalGeneration:
    torch.manual_seed(0)
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=16, patch_size=8,
    )  # fmt: skip
    config = Gemma3Config(
        text_config=Gemma3TextConfig(**SIZES), vision_config=vision, mm_tokens_per_image=4
    )
    return Gemma3ForConditionalGeneration(config)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model.", ""])
def test_text_model_inside_a_wrapper(tmp_path: Path, prefix: str) -> None:
    """All the prefixes Gemma 3 folders have had over the years, and a bare text model."""
    model = multimodal()
    model.config.save_pretrained(tmp_path)
    text = model.model.language_model.state_dict()
    stored = {prefix + name: value.contiguous() for name, value in text.items()}
    if prefix.startswith(("language", "model.language")):
        tower = model.model.vision_tower.state_dict()
        stored |= {f"vision_tower.{name}": value.contiguous() for name, value in tower.items()}
    save_file(stored, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == {f"model.{name}" for name in text}
    for name, value in text.items():
        assert torch.equal(checkpoint.load(f"model.{name}", torch.float32), value)
    assert checkpoint.config["model_type"] == "gemma3_text"
    assert checkpoint.config["hidden_size"] == 32
    assert checkpoint.config["tie_word_embeddings"]


def test_saved_multimodal_model(tmp_path: Path) -> None:
    model = multimodal()
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    expected = {f"model.{n}": v for n, v in model.model.language_model.state_dict().items()}
    assert set(checkpoint.tensors) == set(expected)
    for name, value in expected.items():
        assert torch.equal(checkpoint.load(name, torch.float32), value)


# --- refusals ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file(
        {"model.norm.weight": torch.arange(8.0), "lm_head.weight": torch.ones(4, 8)},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def rewrite_header(path: Path, change: object) -> None:
    """Apply `change(table)` to a safetensors header, keeping the data as it is."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    table = json.loads(content[8 : 8 + length])
    change(table)  # type: ignore[operator]
    header = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def test_wrong_shape(folder: Path) -> None:
    def widen(table: dict) -> None:
        table["model.norm.weight"]["shape"] = [9]

    rewrite_header(folder / "model.safetensors", widen)
    with pytest.raises(ModelFileError, match=r"norm\.weight of shape \[9\].* 36 bytes.* 32"):
        open_checkpoint(folder)


@pytest.mark.parametrize("offsets", [[0, 1 << 40], [1 << 40, (1 << 40) + 32], [-8, 24], [32, 0]])
def test_offsets_outside_the_file(folder: Path, offsets: list[int]) -> None:
    def move(table: dict) -> None:
        table["model.norm.weight"]["data_offsets"] = offsets

    rewrite_header(folder / "model.safetensors", move)
    with pytest.raises(ModelFileError, match=r"norm\.weight"):
        open_checkpoint(folder)


def test_overlapping_tensors(folder: Path) -> None:
    def move(table: dict) -> None:
        table["model.norm.weight"]["data_offsets"] = [0, 32]
        table["lm_head.weight"]["data_offsets"] = [0, 128]

    rewrite_header(folder / "model.safetensors", move)
    with pytest.raises(ModelFileError, match="overlapping"):
        open_checkpoint(folder)


@pytest.mark.parametrize("n_bytes", [0, 4, 8, 60, 200, -1])
def test_truncated(folder: Path, n_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: (is truncated|has a damaged)"):
        open_checkpoint(folder)


@pytest.mark.parametrize("seed", range(40))
def test_corrupt_headers_never_escape_as_other_errors(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 2, 6))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    with contextlib.suppress(HoldoverError):
        checkpoint = open_checkpoint(folder)
        for name in checkpoint.tensors:
            checkpoint.load(name, torch.float32)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "config.json").rename(folder / "hidden.json")
    with pytest.raises(ModelFileError, match=r"config\.json: is missing"):
        open_checkpoint(folder)
    (folder / "hidden.json").rename(folder / "config.json")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_checkpoint(folder)


def test_index_that_lies(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "part-2.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"part-2\.safetensors: is missing"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"model.other.weight": "part-1.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.other\.weight"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../part-1.safetensors"}}))
    with pytest.raises(ModelFileError, match="not a file of this folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": NaN', "\udcff"])
def test_damaged_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_checkpoint(folder)


def test_quantised_tensor_is_refused(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(8, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"stored as I8; supported: F32, F16, BF16"):
        open_checkpoint(folder).load("model.norm.weight", torch.float32)


def test_missing_tensor(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tensor model\.embed"):
        open_checkpoint(folder).load("model.embed_tokens.weight", torch.float32)


def test_unreadable(folder: Path) -> None:
    """A folder where a file should be: unlike missing permissions, root cannot read it either."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be read: Is a directory"):
        open_checkpoint(folder)


def test_digest_covers_config_and_weights(folder: Path) -> None:
    first = open_checkpoint(folder).digest()
    (folder / "README.md").write_text("not part of the model")
    assert open_checkpoint(folder).digest() == first
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 1.0}))
    second = open_checkpoint(folder).digest()
    save_file({"model.norm.weight": torch.zeros(8)}, folder / "model.safetensors")
    assert len({first, second, open_checkpoint(folder).digest()}) == 3
