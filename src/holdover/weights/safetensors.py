"""A folder with config.json and safetensors files, single or sharded, as a checkpoint.

Headers are parsed here, without torch, and checked: offsets inside the file, sizes that agree with
dtype and shape. Values are read through the safetensors library. Names of text weights inside a
multimodal file are given as those of the text model alone; other towers are left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.files import read_json, reading
from holdover.weights._mxfp4 import BLOCKS, MXFP4, SCALES, decode, join_parts
from holdover.weights.base import TensorInfo, file_digest, missing_tensor
from holdover.weights.config import canonical_config

if TYPE_CHECKING:
    import torch

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_ITEM_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip
_LOADABLE = ("F32", "F16", "BF16", "F64")

# Where a wrapper keeps the text model, longest first; what follows is the text model's own name.
_TEXT_PREFIXES = (
    ("model.language_model.lm_head.", "lm_head."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
)
_BARE_PARTS = ("embed_tokens.", "layers.", "norm.")


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsCheckpoint:
    """See `Checkpoint`. Open with `open_folder`."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    _places: Mapping[str, tuple[Path, str]] = field(
        repr=False
    )  # name -> its file, and its name in there; both parts of a tensor in MXFP4 by their own names

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        info = self.tensors.get(name)
        if info is None:
            raise missing_tensor(self.path, name, self.tensors)
        if info.dtype_name == MXFP4:
            return decode(self._stored(name + BLOCKS), self._stored(name + SCALES), dtype)
        if info.dtype_name not in _LOADABLE:
            raise UnsupportedModelError(
                f"{self._places[name][0]}: tensor {name} is stored as {info.dtype_name}; "
                f"supported: {', '.join(_LOADABLE)}, {MXFP4}"
            )
        return self._stored(name).to(dtype)

    def _stored(self, name: str) -> torch.Tensor:
        file, stored_name = self._places[name]
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(stored_name)
                return tensor
        except (SafetensorError, OSError) as error:
            raise ModelFileError(file, f"cannot read tensor {name}: {error}") from error

    def digest(self) -> bytes:
        whole = blake2b(digest_size=32)
        for file in sorted({file for file, _ in self._places.values()} | {self.path / _CONFIG}):
            whole.update(file.name.encode() + b"\0" + file_digest(file))
        return whole.digest()


def open_folder(path: Path) -> SafetensorsCheckpoint:
    """Read config.json and every header; raises for missing, damaged or inconsistent files."""
    raw_config = read_json(path / _CONFIG)
    places: dict[str, tuple[Path, str]] = {}
    infos: dict[str, TensorInfo] = {}
    for file, expected in _files(path).items():
        header = read_safetensors_header(file)
        for stored_name in expected - header.keys():
            raise ModelFileError(file, f"lacks tensor {stored_name}, which {_INDEX} places there")
        for stored_name, info in header.items():
            name = _text_name(stored_name)
            if name in infos:
                raise ModelFileError(file, f"holds tensor {name} a second time")
            if name is not None:
                infos[name] = info
                places[name] = (file, stored_name)
    if not infos:
        raise ModelFileError(path, "holds no tensor of a text model")
    config = canonical_config(raw_config)
    config.setdefault("tie_word_embeddings", "lm_head.weight" not in infos)
    return SafetensorsCheckpoint(path, config, join_parts(path, infos), places)


def _files(path: Path) -> dict[Path, set[str]]:
    """The folder's weight files, each with the tensors an index promises in it."""
    single, index = path / _SINGLE, path / _INDEX
    if single.exists():
        return {single: set()}
    if not index.exists():
        raise ModelFileError(path, f"has neither {_SINGLE} nor {_INDEX}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(index, "has no weight_map")
    files: dict[Path, set[str]] = {}
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelFileError(
                index, f"places {name} in {file_name!r}, not a file of this folder"
            )
        files.setdefault(path / file_name, set()).add(name)
    return files


def _text_name(stored_name: str) -> str | None:
    """Name in the text model, or None for a tensor of another tower."""
    for prefix, own in _TEXT_PREFIXES:
        if stored_name.startswith(prefix):
            return own + stored_name.removeprefix(prefix)
    if stored_name.startswith(_BARE_PARTS):
        return "model." + stored_name
    if stored_name.startswith("lm_head."):
        return stored_name
    rest = stored_name.removeprefix("model.")
    return stored_name if rest != stored_name and rest.startswith(_BARE_PARTS) else None


def read_safetensors_header(path: Path) -> dict[str, TensorInfo]:
    """The tensor table of one safetensors file, checked against the file's size."""
    with reading(path), path.open("rb") as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(8)
        header_bytes = struct.unpack("<Q", head)[0] if len(head) == 8 else file_bytes
        if header_bytes > min(_MAX_HEADER_BYTES, file_bytes - 8):
            raise ModelFileError(
                path, f"is truncated or not safetensors: no header fits in {file_bytes} bytes"
            )
        header = file.read(header_bytes)
    try:
        table = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"has a damaged header: {error}") from error
    if not isinstance(table, dict):
        raise ModelFileError(path, "has a damaged header: not a table")
    data_bytes = file_bytes - 8 - header_bytes
    infos = {
        name: _entry(path, name, entry, data_bytes)
        for name, entry in table.items()
        if name != "__metadata__"
    }
    _check_contiguous(path, table, data_bytes)
    return infos


def _entry(path: Path, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
        sound = all(type(n) is int and n >= 0 for n in numbers) and isinstance(dtype, str)
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise ModelFileError(path, f"has a damaged entry for tensor {name}")
    bits = _ITEM_BITS.get(dtype)
    if bits is None:
        raise UnsupportedModelError(f"{path}: tensor {name} has the unknown dtype {dtype!r}")
    if prod(shape) * bits != (end - start) * 8:
        raise ModelFileError(
            path,
            f"tensor {name} of shape {shape} in {dtype} needs {prod(shape) * bits // 8} bytes, "
            f"its header gives it {end - start}",
        )
    if end > data_bytes:
        raise ModelFileError(
            path,
            f"is truncated: tensor {name} should end at byte {end} of the data, "
            f"which has {data_bytes}",
        )
    return TensorInfo(tuple(shape), dtype, prod(shape), end - start)


def _check_contiguous(path: Path, table: dict[str, Any], data_bytes: int) -> None:
    """The format allows no holes and no overlap; a byte outside every tensor means damage."""
    spans = sorted(e["data_offsets"] for name, e in table.items() if name != "__metadata__")
    position = 0
    for start, end in spans:
        if start != position:
            raise ModelFileError(path, f"has overlapping tensors or a hole at data byte {position}")
        position = end
    if position != data_bytes:
        raise ModelFileError(path, f"has {data_bytes - position} bytes after its last tensor")
