"""How many bytes of weights are stored in files, from headers and sizes alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdover.errors import ModelFileError
from holdover.files import reading
from holdover.plan.sizing.weights import StoredWeights

if TYPE_CHECKING:
    from holdover.weights._gguf_header import GgufHeader

_LARGEST_HEADER_BYTES = 256 << 20
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


def folder_weights(folder: Path) -> StoredWeights | None:
    """Tensor bytes of a folder's safetensors files; the size of its .bin files where it has none;
    None where it has neither."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        sizes = [path.stat().st_size for path in folder.glob("pytorch_model*.bin")]
        source = "sizes of pytorch_model*.bin"
        return StoredWeights(sum(sizes), None, "as stored", source) if sizes else None
    n_bytes, elements, dtypes = 0, 0, Counter[str]()
    for path in files:
        for dtype, count, size in _tensors(path):
            n_bytes += size
            elements += count
            dtypes[dtype] += size
    # Packed types hold several weights in an element: their number is not in the header.
    packed = any(dtype in ("I32", "U8", "I8") for dtype in dtypes)
    named = "+".join(dtype.lower() for dtype, _ in dtypes.most_common(2))
    return StoredWeights(n_bytes, None if packed else elements, named, "safetensors headers")


def gguf_headers(path: Path, whole_bytes: int | None = None) -> dict[Path, GgufHeader]:
    """The header of a GGUF file, and those of the other parts of a file in parts.

    `whole_bytes` is the size of a file of which `path` is the first piece, with its only header.
    """
    from holdover.weights._gguf_header import read_header

    if whole_bytes is not None:
        return {path: read_header(path, whole_bytes)}
    return {part: read_header(part) for part in (path, *_gguf_parts(path))}


def gguf_weights(headers: Mapping[Path, GgufHeader]) -> StoredWeights:
    """Tensor bytes over all parts."""
    n_bytes, elements, types = 0, 0, Counter[str]()
    for path, header in headers.items():
        if not header.tensors:
            continue
        known = all(tensor.n_bytes for tensor in header.tensors)
        first = min(tensor.offset_bytes for tensor in header.tensors)
        stored = sum(tensor.n_bytes for tensor in header.tensors)
        n_bytes += stored if known else path.stat().st_size - first
        for tensor in header.tensors:
            types[tensor.type_name] += prod(tensor.shape)
            elements += prod(tensor.shape)
    named = types.most_common(1)[0][0].lower() if types else "none"
    return StoredWeights(n_bytes, elements, named, "GGUF header")


def tensor_elements(headers: Mapping[Path, GgufHeader]) -> dict[str, int]:
    return {t.name: prod(t.shape) for header in headers.values() for t in header.tensors}


def _gguf_parts(path: Path) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match.groups()
    parts = [path.with_name(f"{stem}-{n:05d}-of-{count}.gguf") for n in range(1, int(count) + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFileError(path, f"is one of {count} parts, and {missing[0]} is not there")
    return parts


def _tensors(path: Path) -> list[tuple[str, int, int]]:
    """(dtype, elements, bytes) of every tensor of a safetensors file."""
    try:
        with reading(path), path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > min(_LARGEST_HEADER_BYTES, path.stat().st_size - 8):
                raise ModelFileError(path, "is not a whole safetensors file")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        return [_entry(info) for info in header.values()]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelFileError(path, f"has a damaged header: {error}") from error


def _entry(info: dict[str, Any]) -> tuple[str, int, int]:
    start, stop = info["data_offsets"]
    return str(info["dtype"]), prod(info["shape"]), stop - start
