"""GGUF files: values against transformers and the gguf package, configs, and damage."""

from __future__ import annotations

import contextlib
import os
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from holdover.errors import HoldoverError, ModelFileError, UnsupportedModelError
from holdover.weights import open_checkpoint, require_tensors
from holdover.weights._gguf_header import BLOCKS, GgufTensor, read_header

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FF = 256, 4, 2, 64, 512


def write_gguf(
    path: Path,
    architecture: str = "llama",
    extra: dict[str, object] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    quantized: dict[str, tuple[np.ndarray, Quant]] | None = None,
) -> Path:
    """A one-layer model's header with the given tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (extra or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        add[type(value)](f"{architecture}.{key}", value)
    embedding = np.zeros((8, HIDDEN), np.float32)
    for name, values in {"token_embd.weight": embedding, **(tensors or {})}.items():
        writer.add_tensor(name, values)
    for name, (data, kind) in (quantized or {}).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow
def test_smollm2_equals_transformers(smollm2_path: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).state_dict()
    checkpoint = open_checkpoint(smollm2_path)
    expected = {n: v for n, v in reference.items() if n != "lm_head.weight"}
    assert set(checkpoint.tensors) == set(expected)
    loaded = {name: checkpoint.load(name, torch.float32) for name in expected}
    for name, values in expected.items():
        assert torch.equal(loaded[name], values), name
    assert checkpoint.config["tie_word_embeddings"]


def stored_values(path: Path, entry: GgufTensor) -> np.ndarray:
    """A tensor through the gguf package, in the shape and order of the file."""
    raw = np.fromfile(path, np.uint8, entry.n_bytes, offset=entry.offset_bytes)
    rows = raw.reshape(entry.shape[0] if len(entry.shape) > 1 else 1, -1)
    return gguf.quants.dequantize(rows, Quant(entry.type_id)).reshape(entry.shape)


def test_smollm2_layers_equal_transformers_processing(smollm2_path: Path) -> None:
    """As above for two layers, quickly: transformers' own undoing of the row order."""
    checkpoint = open_checkpoint(smollm2_path)
    processor = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    names = {
        f"blk.{layer}.{stored}.weight": f"model.layers.{layer}.{name}.weight"
        for layer in (0, 29)
        for stored, name in parts.items()
    }
    names |= {"token_embd.weight": "model.embed_tokens.weight"}
    names |= {"output_norm.weight": "model.norm.weight"}
    entries = {t.name: t for t in read_header(smollm2_path).tensors}
    for stored, name in names.items():
        values = processor.process(stored_values(smollm2_path, entries[stored]), stored).weights
        np.testing.assert_array_equal(checkpoint.load(name, torch.float32).numpy(), values, name)


def test_gemma3_equals_the_gguf_package(gemma3_path: Path) -> None:
    """Independent reader: names by hand for one layer, norms minus one, no row order to undo."""
    checkpoint = open_checkpoint(gemma3_path)
    pairs = {
        "blk.17.attn_q.weight": "model.layers.17.self_attn.q_proj.weight",
        "blk.17.attn_v.weight": "model.layers.17.self_attn.v_proj.weight",
        "blk.17.attn_output.weight": "model.layers.17.self_attn.o_proj.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.17.ffn_norm.weight": "model.layers.17.pre_feedforward_layernorm.weight",
        "blk.17.post_attention_norm.weight": "model.layers.17.post_attention_layernorm.weight",
        "blk.17.post_ffw_norm.weight": "model.layers.17.post_feedforward_layernorm.weight",
        "blk.17.attn_q_norm.weight": "model.layers.17.self_attn.q_norm.weight",
        "output_norm.weight": "model.norm.weight",
    }
    entries = {t.name: t for t in read_header(gemma3_path).tensors}
    for stored, name in pairs.items():
        values = stored_values(gemma3_path, entries[stored])
        if "norm" in stored:
            values = values - np.float32(1)
        np.testing.assert_array_equal(checkpoint.load(name, torch.float32).numpy(), values, name)


def test_gemma3_config(gemma3_path: Path) -> None:
    config = open_checkpoint(gemma3_path).config
    assert config["model_type"] == "gemma3_text"
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 1)
    assert (config["head_dim"], config["query_pre_attn_scalar"]) == (256, 256)
    assert config["vocab_size"] == 262144
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert config["sliding_window"] == 512
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17]


def random_blocks(kind: Quant, n_blocks: int, seed: int) -> np.ndarray:
    """Valid random blocks of a type: random bytes, with every half-float scale a finite number."""
    rng = np.random.default_rng(seed)
    _, _, block_bytes = BLOCKS[kind]
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    scales = {
        Quant.Q2_K: (80, 82), Quant.Q3_K: (108,), Quant.Q4_K: (0, 2), Quant.Q5_K: (0, 2),
        Quant.Q6_K: (208,),
    }  # fmt: skip
    for at in scales[kind]:
        value = rng.normal(size=n_blocks).astype(np.float16)
        blocks[:, at : at + 2] = value.view(np.uint8).reshape(-1, 2)
    return blocks


@pytest.mark.parametrize("name", [name for name, _, _ in BLOCKS.values()])
def test_every_type_dequantises_as_the_package_does(tmp_path: Path, name: str) -> None:
    kind = Quant[name]
    # More than one piece, and not a whole number of pieces.
    shape = (1100, 512)
    rng = np.random.default_rng(7)
    if name.endswith("_K"):
        data = random_blocks(kind, 1100 * 512 // 256, 7).reshape(1100, -1)
    else:
        data = gguf.quants.quantize(rng.normal(size=shape).astype(np.float32), kind)
    expected = gguf.quants.dequantize(data, kind).reshape(shape)
    path = write_gguf(
        tmp_path / "m.gguf", "qwen2", quantized={"blk.0.ffn_down.weight": (data, kind)}
    )
    checkpoint = open_checkpoint(path)
    tensor = "model.layers.0.mlp.down_proj.weight"
    assert checkpoint.tensors[tensor].dtype_name == name
    assert checkpoint.tensors[tensor].shape == shape
    np.testing.assert_array_equal(checkpoint.load(tensor, torch.float32).numpy(), expected)
    rounded = torch.from_numpy(expected).to(torch.bfloat16)
    assert torch.equal(checkpoint.load(tensor, torch.bfloat16), rounded)


def interleaved(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's converter: first and second half of each head's rows, taken in turns."""
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_rotary_row_order_of_weights_and_biases(tmp_path: Path, architecture: str) -> None:
    rng = np.random.default_rng(1)
    q = rng.normal(size=(HIDDEN, HIDDEN)).astype(np.float32)
    k = rng.normal(size=(KV_HEADS * HEAD_DIM, HIDDEN)).astype(np.float32)
    bias = rng.normal(size=KV_HEADS * HEAD_DIM).astype(np.float32)
    mix = interleaved if architecture == "llama" else lambda rows, _: rows
    stored = {
        "blk.0.attn_q.weight": mix(q, HEADS),
        "blk.0.attn_k.weight": mix(k, KV_HEADS),
        "blk.0.attn_q.bias": np.zeros(HIDDEN, np.float32),
        "blk.0.attn_k.bias": mix(bias, KV_HEADS),
        "blk.0.attn_v.weight": k,
    }
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture, tensors=stored))
    attention = "model.layers.0.self_attn."
    for name, expected in (
        ("q_proj.weight", q), ("k_proj.weight", k), ("k_proj.bias", bias), ("v_proj.weight", k),
    ):  # fmt: skip
        got = checkpoint.load(attention + name, torch.float32).numpy()
        np.testing.assert_array_equal(got, expected, name)
    assert checkpoint.config["attention_bias"]
    assert checkpoint.config["model_type"] == architecture


def test_llama3_rope_factors_give_transformers_frequencies(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 500000.0,
    }  # fmt: skip
    config = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, head_dim=HEAD_DIM, rope_parameters=scaling
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    factors = (plain / scaled.double()).float()
    assert factors.max() > 7.9
    assert 0.999 < factors.min() < 1.001
    path = write_gguf(
        tmp_path / "m.gguf",
        extra={"rope.freq_base": 500000.0},
        tensors={"rope_freqs.weight": factors.numpy()},
    )
    checkpoint = open_checkpoint(path)
    read = torch.tensor(checkpoint.config["rope_freq_factors"])
    torch.testing.assert_close((plain / read).float(), scaled)
    assert "rope_freqs.weight" not in checkpoint.tensors


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = open_checkpoint(write_gguf(tmp_path / "a.gguf", extra=linear)).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    yarn = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }  # fmt: skip
    config = open_checkpoint(write_gguf(tmp_path / "b.gguf", "qwen3", extra=yarn)).config
    assert config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip


def test_untied_head_and_mistral_window(tmp_path: Path) -> None:
    head = {"output.weight": np.ones((8, HIDDEN), np.float32)}
    extra = {"attention.sliding_window": 64}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", extra=extra, tensors=head))
    assert checkpoint.config["model_type"] == "mistral"
    assert checkpoint.config["sliding_window"] == 64
    assert not checkpoint.config["tie_word_embeddings"]
    assert checkpoint.load("lm_head.weight", torch.float32).sum() == 8 * HIDDEN


def test_digest_follows_content(tmp_path: Path, smollm2_path: Path) -> None:
    first = write_gguf(tmp_path / "a.gguf")
    second = tmp_path / "b.gguf"
    content = bytearray(first.read_bytes())
    second.write_bytes(content)
    digest = open_checkpoint(first).digest()
    assert len(digest) == 32
    assert digest == open_checkpoint(second).digest()
    content[-1] ^= 1
    second.write_bytes(content)
    assert digest != open_checkpoint(second).digest()


# --- refusals ---------------------------------------------------------------------------------


def test_unsupported_architecture_lists_the_others(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "falcon")
    with pytest.raises(UnsupportedModelError, match=r"'falcon'.*gemma3, llama, qwen2, qwen3"):
        open_checkpoint(path)


def test_experts_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", extra={"expert_count": 8})
    with pytest.raises(UnsupportedModelError, match="with experts"):
        open_checkpoint(path)


def test_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"blk.0.attn_sinks": np.ones(4, np.float32)})
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_sinks"):
        open_checkpoint(path)


def test_unsupported_quantisation_is_refused_when_loaded(tmp_path: Path) -> None:
    data = np.zeros((FF, 144 * HIDDEN // 256 // 144 * 136), np.uint8)
    path = write_gguf(tmp_path / "m.gguf", quantized={"blk.0.ffn_up.weight": (data, Quant.IQ4_XS)})
    checkpoint = open_checkpoint(path)
    with pytest.raises(UnsupportedModelError, match=r"ffn_up.*IQ4_XS.*Q6_K"):
        checkpoint.load("model.layers.0.mlp.up_proj.weight", torch.float32)


def test_missing_tensors_and_wrong_shapes_are_named(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf"))
    require_tensors(checkpoint, {"model.embed_tokens.weight": (8, HIDDEN)})
    with pytest.raises(ModelFileError, match=r"has shape \[8, 256\].*\[9, 256\]"):
        require_tensors(checkpoint, {"model.embed_tokens.weight": (9, HIDDEN)})
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is missing"):
        require_tensors(checkpoint, {"model.norm.weight": (HIDDEN,)})
    with pytest.raises(ModelFileError, match=r"no tensor model\.norm\.weight"):
        checkpoint.load("model.norm.weight", torch.float32)


@pytest.mark.parametrize("n_bytes", [0, 3, 4, 20, 24, 40, 500, 100_000, 1_300_000, 5_000_000, -1])
def test_truncated_file(smollm2_path: Path, tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    whole = smollm2_path.stat().st_size
    with smollm2_path.open("rb") as file:
        path.write_bytes(file.read(n_bytes if n_bytes >= 0 else whole - 1))
    with pytest.raises(ModelFileError, match=r"cut\.gguf: .*(truncated|not a GGUF|is empty)"):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", ["strings", "bytes", "one string"])
def test_counts_no_file_has_are_not_followed(tmp_path: Path, kind: str) -> None:
    """A damaged count in a file of many GB: what it spans is there, and must not be read."""
    value = {
        "strings": struct.pack("<IIQ", 9, 8, 10**9),
        "bytes": struct.pack("<IIQ", 9, 0, 10**10),
        "one string": struct.pack("<IQ", 8, 15 << 30),
    }[kind]
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + value)
    os.truncate(path, 20 << 30)
    with pytest.raises(ModelFileError, match="is damaged: the value of 'a' has 1"):
        read_header(path)


def test_wrong_magic_and_version(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(b"GGML" + content[4:])
    with pytest.raises(ModelFileError, match="GGML"):
        open_checkpoint(path)
    path.write_bytes(content[:4] + struct.pack("<I", 1) + content[8:])
    with pytest.raises(ModelFileError, match="version 1; versions 2 and 3"):
        open_checkpoint(path)


@pytest.mark.parametrize("seed", range(40))
def test_corrupt_headers_never_escape_as_other_errors(
    smollm2_path: Path, tmp_path: Path, seed: int
) -> None:
    """Random bytes of the header replaced: it opens, or says what is wrong, within a moment."""
    rng = random.Random(seed)
    small = write_gguf(tmp_path / "m.gguf", extra={"rope.scaling.type": "none"})
    with smollm2_path.open("rb") as file:
        content = bytearray(file.read(1500) if seed % 4 == 0 else small.read_bytes())
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(4, min(len(content), 1100))
        content[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    small.write_bytes(content)
    with contextlib.suppress(HoldoverError):
        checkpoint = open_checkpoint(small)
        for name in checkpoint.tensors:
            checkpoint.load(name, torch.float32)
