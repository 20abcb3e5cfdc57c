"""One GGUF file as a checkpoint.

Tensors come out in Hugging Face's convention: rows of Llama's q and k in its rotary order (the file
interleaves them), Gemma's norm weights as the offset from one (the file bakes the one in). Llama 3
frequency factors are the config key `rope_freq_factors`: divide each rotary frequency by its factor
(`rope_scaling` is None then, for the file holds the result and not the rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.files import reading
from holdover.weights._gguf_header import BLOCKS, GgufTensor, read_header
from holdover.weights._gguf_names import ROPE_FACTORS, hf_name
from holdover.weights.base import TensorInfo, file_digest, missing_tensor
from holdover.weights.config import gguf_config

if TYPE_CHECKING:
    import torch

# Pieces that stay in a core's cache while numpy walks its temporaries, and wide enough for two
# threads to gain: measured best of 32k to 2M on two cores.
_PIECE_ELEMENTS = 1 << 18
_THREADS = 2
_MOST_PIECES_ALONE = 16  # below that the loader's own threads share the work layer by layer


@dataclass(frozen=True, slots=True, eq=False)
class GgufCheckpoint:
    """See `Checkpoint`. Open with `open_gguf`."""

    path: Path
    config: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    _entries: Mapping[str, GgufTensor] = field(repr=False)

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        import torch

        entry = self._entries.get(name)
        if entry is None:
            raise missing_tensor(self.path, name, self.tensors)
        rows = _read_rows(self.path, entry)
        if self.config["model_type"] in ("llama", "mistral"):
            rows = self._in_hf_row_order(name, rows)
        if self.config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
            # The one is taken off before rounding: near one, bf16 has no digits left for it.
            return (_dequantize(rows, entry, torch.float32) - 1.0).to(dtype)
        return _dequantize(rows, entry, dtype)

    def digest(self) -> bytes:
        return file_digest(self.path)

    def _in_hf_row_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Undo the converter's pairing of rotary rows; rows are still quantised, so it is cheap."""
        if ".self_attn.q_proj." in name:
            n_heads = self.config["num_attention_heads"]
        elif ".self_attn.k_proj." in name:
            n_heads = self.config["num_key_value_heads"]
        else:
            return rows
        n_rows = rows.shape[0]
        if n_rows % (2 * n_heads):
            raise ModelFileError(self.path, f"tensor {name} has {n_rows} rows for {n_heads} heads")
        pairs = rows.reshape(n_heads, n_rows // n_heads // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(rows.shape)


def open_gguf(path: Path, whole_bytes: int | None = None) -> GgufCheckpoint:
    """Read the header; raises for a damaged file, an architecture or tensor that is not served.

    With the size of the whole file, `path` may be its first part; no tensor can be loaded then.
    """
    header = read_header(path, whole_bytes)
    config = gguf_config(path, header)
    architecture = header.metadata["general.architecture"]
    entries: dict[str, GgufTensor] = {}
    for tensor in header.tensors:
        if tensor.name == ROPE_FACTORS:
            config["rope_freq_factors"] = _rope_factors(path, tensor)
            continue
        name = hf_name(architecture, tensor.name)
        if name is None:
            raise UnsupportedModelError(
                f"{path}: tensor {tensor.name} is not part of a plain {architecture} model"
            )
        entries[name] = tensor
    infos = {
        name: TensorInfo(t.shape, t.type_name, prod(t.shape), t.n_bytes)
        for name, t in entries.items()
    }
    return GgufCheckpoint(path, config, header.metadata, infos, entries)


def _rope_factors(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    # Always F32 in practice; read without torch so that planning stays quick.
    if tensor.type_name != "F32":
        raise UnsupportedModelError(f"{path}: {tensor.name} is {tensor.type_name}, not F32")
    return tuple(_read_rows(path, tensor).view(np.float32).reshape(-1).tolist())


def _read_rows(path: Path, entry: GgufTensor) -> np.ndarray:
    """The stored bytes of a tensor, one row per row of the tensor (one per element of a vector)."""
    if entry.type_id not in BLOCKS:
        supported = ", ".join(name for name, _, _ in BLOCKS.values())
        raise UnsupportedModelError(
            f"{path}: tensor {entry.name} is quantised as {entry.type_name}; supported: {supported}"
        )
    with reading(path):
        data = np.fromfile(path, np.uint8, entry.n_bytes, offset=entry.offset_bytes)
    if data.size != entry.n_bytes:
        raise ModelFileError(path, f"ended while tensor {entry.name} was being read")
    n_rows = entry.shape[0] if len(entry.shape) > 1 or BLOCKS[entry.type_id][1] == 1 else 1
    return data.reshape(n_rows, -1)


def _dequantize(rows: np.ndarray, entry: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """Stored bytes as a tensor of the entry's shape, decoded in float32 and rounded once."""
    import torch

    name, block_elements, block_bytes = BLOCKS[entry.type_id]
    plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(name)
    if plain is not None:
        stored = torch.from_numpy(rows.reshape(-1)).view(plain)
        return stored.to(dtype).reshape(entry.shape)
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType(entry.type_id)
    blocks = rows.reshape(-1, block_bytes)
    values = torch.empty(len(blocks), block_elements, dtype=dtype)
    step = max(1, _PIECE_ELEMENTS // block_elements)

    def decode(start: int) -> None:
        # One long row: the package cuts its input into groups of rows, and short ones cost more
        # in calls than in arithmetic. A scale that is not a number decodes as it stands.
        part = blocks[start : start + step]
        with np.errstate(all="ignore"):
            decoded = quants.dequantize(part.reshape(1, -1), kind)
        values[start : start + step] = torch.from_numpy(decoded.reshape(len(part), -1))

    starts = range(0, len(blocks), step)
    if len(starts) <= _MOST_PIECES_ALONE:
        for start in starts:
            decode(start)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(decode, starts):
                pass
    return values.reshape(entry.shape)
