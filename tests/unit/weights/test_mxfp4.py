"""Experts in MXFP4 against transformers' own conversion, up to the loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from holdover.errors import ModelFileError
from holdover.geometry.base import planned_weights_bytes, read_geometry
from holdover.models.base import load_model
from holdover.spec.dtypes import DType
from holdover.weights import open_checkpoint

EXPERTS, HIDDEN, INNER = 3, 64, 32
STORED = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}


def made() -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A config, a model's tensors as transformers decodes them, and as they are published."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=96, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=EXPERTS,
        num_experts_per_tok=2, sliding_window=8, max_position_embeddings=128,
    )  # fmt: skip
    decoded = dict(GptOssForCausalLM(config).state_dict())
    packed = dict(decoded)
    for layer in range(2):
        for part, (outputs, inputs) in STORED.items():
            name = f"model.layers.{layer}.mlp.experts.{part}"
            shape = EXPERTS, outputs, inputs // 32
            blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
            scales = torch.randint(100, 130, shape, dtype=torch.uint8)
            del packed[name]
            packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales
            decoded[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return config.to_dict(), decoded, packed


def saved(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """In two shards, the scales apart from their blocks."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    scales = {name for name in tensors if name.endswith("_scales")}
    places = {name: f"{'ba'[name in scales]}.safetensors" for name in tensors}
    for file in set(places.values()):
        part = {name: tensors[name].contiguous() for name, at in places.items() if at == file}
        save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_the_model_is_that_of_decoded_tensors(tmp_path: Path, dtype: DType) -> None:
    config, decoded, packed = made()
    models: list[Any] = []
    for folder, tensors in (("decoded", decoded), ("packed", packed)):
        checkpoint = open_checkpoint(saved(tmp_path / folder, config, tensors))
        models.append(load_model(checkpoint, read_geometry(checkpoint.config), dtype))
    for theirs, ours in zip(models[0].layers, models[1].layers, strict=True):
        assert torch.equal(theirs.mlp.gate_up, ours.mlp.gate_up)
        assert torch.equal(theirs.mlp.down, ours.mlp.down)
        assert ours.mlp.down.std() > 0
    assert models[1].weights_nbytes == planned_weights_bytes(models[1].geometry, dtype)


def test_the_table_has_one_tensor_for_both_parts(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved(tmp_path, made()[0], made()[2]))
    info = checkpoint.tensors["model.layers.1.mlp.experts.down_proj"]
    assert (info.shape, info.dtype_name) == ((EXPERTS, INNER, HIDDEN), "MXFP4")
    assert info.n_elements == EXPERTS * INNER * HIDDEN
    assert info.n_bytes == info.n_elements // 2 + info.n_elements // 32
    assert not [name for name in checkpoint.tensors if name.endswith(("_blocks", "_scales"))]


@pytest.mark.parametrize("exponent", [0, 1, 254])
def test_the_least_and_the_largest_scales(tmp_path: Path, exponent: int) -> None:
    """2^-127 and the products that leave the normal range included."""
    config, _, packed = made()
    name = "model.layers.0.mlp.experts.down_proj"
    packed[f"{name}_scales"].fill_(exponent)
    found = open_checkpoint(saved(tmp_path, config, packed)).load(name, torch.float32)
    blocks = packed[f"{name}_blocks"].reshape(-1, 16).long()
    expected = torch.stack((blocks & 15, blocks >> 4), -1).flatten()
    fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    exact = torch.cat((fp4, -fp4))[expected] * 2.0 ** (exponent - 127)
    assert torch.equal(found.mT.reshape(-1), exact.float())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no scales", "down_proj_blocks without model.layers.0.mlp.experts.down_proj_scales"),
        ("fewer scales", "down_proj_blocks of shape \\[3, 64, 1, 16\\] and its scales of shape"),
    ],
)
def test_halves_that_do_not_agree(tmp_path: Path, change: str, words: str) -> None:
    config, _, packed = made()
    scales = packed.pop("model.layers.0.mlp.experts.down_proj_scales")
    if change == "fewer scales":
        packed["model.layers.0.mlp.experts.down_proj_scales"] = scales[:, :5]
    with pytest.raises(ModelFileError, match=words):
        open_checkpoint(saved(tmp_path, config, packed))
