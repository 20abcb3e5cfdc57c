"""What codecs cost, in exact bytes, and that llama.cpp's types are llama.cpp's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs.base import codec_names, get_codec, get_sized_codec, sized_codec_names
from holdover.errors import ConfigError
from holdover.spec.layers import Plane

ROW_128_BYTES = {  # one token and head of 128 dims
    "fp32": 512, "bf16": 256, "fp16": 256, "fp8": 128, "int8": 130, "int4": 72,
    "q8_0": 4 * 34, "q5_1": 4 * 24, "q5_0": 4 * 22, "q4_1": 4 * 20, "q4_0": 4 * 18,
}  # fmt: skip


def stored_bytes(codec: str, *planes: Plane, block_tokens: int = 1) -> int:
    sized = get_sized_codec(codec)
    return sum(field.nbytes for plane in planes for field in sized.fields(plane, block_tokens))


def test_bytes_of_a_row() -> None:
    assert set(ROW_128_BYTES) == set(codec_names())
    for codec, row_bytes in ROW_128_BYTES.items():
        assert stored_bytes(codec, Plane("k", 1, 128)) == row_bytes
        assert stored_bytes(codec, Plane("k", 8, 128), block_tokens=16) == 128 * row_bytes


def test_a_short_span_of_int4_has_scales_of_its_own() -> None:
    assert stored_bytes("int4", Plane("k", 1, 80)) == 40 + 4 * 2
    with pytest.raises(ConfigError, match=r"int4 .* 1 x 7: it needs an even number of dims"):
        stored_bytes("int4", Plane("k", 1, 7))


def test_rows_of_latent_attention_in_vllm() -> None:
    latent, rope, index = Plane("latent", 1, 512), Plane("rope", 1, 64), Plane("index", 1, 128)
    assert stored_bytes("fp8_ds_mla", latent, rope) == 656
    assert stored_bytes("fp8_ds_mla", latent, rope, index) == 656 + 132
    assert stored_bytes("fp8_indexer", index) == 132
    with pytest.raises(
        ConfigError, match=r"fp8_ds_mla .* k rows of 8 x 128: .* latent, index, rope"
    ):
        stored_bytes("fp8_ds_mla", Plane("k", 8, 128))
    with pytest.raises(ConfigError, match="multiple of 128"):
        stored_bytes("fp8_ds_mla", Plane("latent", 1, 500))


def test_what_is_for_sizing_only_cannot_be_served_with() -> None:
    only_sized = set(sized_codec_names()) - set(codec_names())
    assert only_sized == {"fp8_ds_mla", "fp8_indexer"}
    for name in only_sized:
        with pytest.raises(
            ConfigError, match=rf"--kv: '{name}' can be sized but not served; .*int8"
        ):
            get_codec(name)


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_levels_are_those_of_llama_cpp(name: str) -> None:
    """Against gguf's own quantiser: all scales equal, all but a few levels, and every value close.

    gguf rounds in float64 where llama.cpp and this round in float32, so a value halfway between
    two levels may go to the other.
    """
    rows = torch.randn(64, 2, 128, generator=torch.Generator().manual_seed(5))
    rows[3, 1, 32:64] = 0.0
    kind = gguf.GGMLQuantizationType[name.upper()]
    packed = gguf.quants.quantize(rows.numpy(), kind)
    theirs = torch.from_numpy(gguf.quants.dequantize(packed, kind))
    codec = get_codec(name)
    encoded = codec.encode(rows)
    ours = codec.decode(encoded)
    assert packed.nbytes == sum(part.nbytes for part in encoded.values())
    assert torch.equal(encoded["scale"], _leading_fp16(packed, rows, 0))
    if "minimum" in encoded:
        assert torch.equal(encoded["minimum"], _leading_fp16(packed, rows, 2))
    assert (ours != theirs).float().mean() < 1e-3
    assert (ours - theirs).abs().max() <= encoded["scale"].float().abs().max()


def _leading_fp16(packed: np.ndarray, rows: Tensor, offset: int) -> Tensor:
    """The fp16 at a byte offset of each packed block."""
    blocks = packed.reshape(*rows.shape[:-1], rows.shape[-1] // 32, -1)
    return torch.from_numpy(blocks[..., offset : offset + 2].copy().view(np.float16)[..., 0])


def test_fp8_stops_at_its_largest() -> None:
    codec = get_codec("fp8")
    rows = torch.tensor([[[448.0, 460.0, -1e9, 2.0**-9, 2.0**-11, 17.0]]])
    decoded = codec.decode(codec.encode(rows)).flatten().tolist()
    assert decoded == [448.0, 448.0, -448.0, 2.0**-9, 0.0, 16.0]


@pytest.mark.parametrize("magnitude", [1e-25, 1e-6, 1.0, 1e6, 1e30])
def test_int8_holds_rows_of_any_size_alike(magnitude: float) -> None:
    rows = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(1)) * magnitude
    codec = get_codec("int8")
    error = (codec.decode(codec.encode(rows)) - rows).abs() / rows.abs().amax(-1, keepdim=True)
    assert error.max() <= codec.max_error
