"""The header of a GGUF file: every key and the tensor table, each checked against the file's size.

Written here because the `gguf` package's reader makes an array object per vocabulary entry (seconds
for a large vocabulary). No byte of the file is trusted: a count, length or offset that does not fit
is a `ModelFileError` naming where.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from holdover.errors import ModelFileError
from holdover.files import reading
from holdover.units import round_up

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
# Larger than any file's, so that a damaged count or length of a file of many GB is no reason to
# read all of it.
_MAX_ITEMS = 2**24
_MAX_STRING_BYTES = 2**26
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_U64 = struct.Struct("<Q")

# Elements and bytes of one block, by ggml type id, for every type that can be dequantised here.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
# Names of the others, for the error that refuses them.
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table. `shape` is outermost first; offset and size are in the file.

    A type that cannot be dequantised keeps its name and has `n_bytes` 0: it is refused when asked
    for, so that the file can still be inspected.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int
    n_bytes: int

    @property
    def type_name(self) -> str:
        known = BLOCKS.get(self.type_id)
        return known[0] if known else _OTHER_TYPES.get(self.type_id, f"ggml type {self.type_id}")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path, whole_bytes: int | None = None) -> GgufHeader:
    """Parse and check the header of a GGUF file (version 2 or 3, little endian).

    `whole_bytes` is the size of the whole file where `path` is only its first part.
    """
    with reading(path), path.open("rb") as file:
        head = file.read(24)
        _check_head(path, head)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data, whole_bytes or len(data), *struct.unpack("<QQ", head[8:]))


def _check_head(path: Path, head: bytes) -> None:
    if not head:
        raise ModelFileError(path, "is empty")
    if head[:4] != MAGIC:
        raise ModelFileError(
            path, f"is not a GGUF file: it starts with {head[:4]!r}, not {MAGIC!r}"
        )
    if len(head) < 24:
        raise ModelFileError(path, f"is truncated: {len(head)} bytes are not even a GGUF header")
    (version,) = struct.unpack_from("<I", head, 4)
    if version not in _VERSIONS:
        raise ModelFileError(path, f"has GGUF version {version}; versions 2 and 3 are read")


def _parse(path: Path, data: mmap.mmap, file_bytes: int, n_tensors: int, n_keys: int) -> GgufHeader:
    cursor = _Cursor(path, data, 24)
    metadata: dict[str, Any] = {}
    for index in range(n_keys):
        key = cursor.string(f"the name of key {index} of {n_keys}")
        if key in metadata:
            raise ModelFileError(path, f"header has the key {key!r} twice")
        metadata[key] = cursor.value(key)
    entries = [_table_entry(cursor, index, n_tensors) for index in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(
            path, f"header has general.alignment {alignment!r}, not a power of two"
        )
    data_start = round_up(cursor.position, alignment)
    tensors = tuple(_place(path, entry, data_start, file_bytes) for entry in entries)
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise ModelFileError(path, "header lists a tensor name twice")
    return GgufHeader(metadata, tensors)


def _table_entry(cursor: _Cursor, index: int, n_tensors: int) -> GgufTensor:
    where = f"entry {index} of {n_tensors} in the tensor table"
    name = cursor.string(where)
    n_dims = cursor.scalar("I", where)
    if not 1 <= n_dims <= _MAX_DIMS:
        raise ModelFileError(cursor.path, f"tensor {name} has {n_dims} dimensions, not 1 to 4")
    dims = tuple(cursor.scalar("Q", where) for _ in range(n_dims))
    type_id = cursor.scalar("I", where)
    offset_bytes = cursor.scalar("Q", where)
    return GgufTensor(name, dims[::-1], type_id, offset_bytes, 0)


def _place(path: Path, entry: GgufTensor, data_start: int, file_bytes: int) -> GgufTensor:
    """The entry with its place in the file, once it is known to be inside the file."""
    if entry.type_id not in BLOCKS:
        return entry
    name, block_elements, block_bytes = BLOCKS[entry.type_id]
    if entry.shape[-1] % block_elements or prod(entry.shape) == 0:
        raise ModelFileError(
            path,
            f"tensor {entry.name} of shape {list(entry.shape)} does not divide into {name} "
            f"blocks of {block_elements}",
        )
    n_bytes = prod(entry.shape) // block_elements * block_bytes
    start = data_start + entry.offset_bytes
    if start + n_bytes > file_bytes:
        raise ModelFileError(
            path,
            f"is truncated or damaged: tensor {entry.name} should end at byte {start + n_bytes}, "
            f"the file has {file_bytes}",
        )
    return GgufTensor(entry.name, entry.shape, entry.type_id, start, n_bytes)


class _Cursor:
    """A position in the header that never leaves the file."""

    __slots__ = ("data", "path", "position")

    def __init__(self, path: Path, data: mmap.mmap, position: int) -> None:
        self.path = path
        self.data = data
        self.position = position

    def take(self, n_bytes: int, where: str) -> int:
        start, end = self.position, self.position + n_bytes
        if end > len(self.data):
            raise ModelFileError(
                self.path,
                f"is truncated or damaged: {where} reaches byte {end}, "
                f"the file has {len(self.data)}",
            )
        self.position = end
        return start

    def scalar(self, code: str, where: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self.data, self.take(layout.size, where))[0]

    def string(self, where: str) -> str:
        length = self.scalar("Q", where)
        if length > _MAX_STRING_BYTES:
            raise ModelFileError(self.path, f"is damaged: {where} has {length} bytes")
        start = self.take(length, where)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(self.path, f"is damaged: {where} is not UTF-8") from error

    def value(self, key: str) -> Any:
        where = f"the value of {key!r}"
        kind = self.scalar("I", where)
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], where)
        if kind == _STRING:
            return self.string(where)
        if kind != _ARRAY:
            raise ModelFileError(self.path, f"is damaged: {where} has the unknown type {kind}")
        item_kind, count = self.scalar("I", where), self.scalar("Q", where)
        if count > _MAX_ITEMS:
            raise ModelFileError(self.path, f"is damaged: {where} has {count} items")
        if item_kind == _STRING:
            return self._strings(count, where)
        if item_kind not in _SCALARS:
            raise ModelFileError(self.path, f"{where} is an array of the unknown type {item_kind}")
        item_bytes = struct.calcsize("<" + _SCALARS[item_kind])
        start = self.take(count * item_bytes, where)
        return struct.unpack_from(f"<{count}{_SCALARS[item_kind]}", self.data, start)

    def _strings(self, count: int, where: str) -> tuple[str, ...]:
        # The one long loop of the header (a vocabulary): bounds are left to `unpack_from`, which
        # refuses to read a length outside the file, and to the check of the last position.
        data, position, unpack = self.data, self.position, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                (length,) = unpack(data, position)
                position += 8 + length
                found.append(data[position - length : position].decode())
        except (struct.error, UnicodeDecodeError, OverflowError) as error:
            raise ModelFileError(
                self.path, f"is truncated or damaged in item {len(found)} of {where}"
            ) from error
        if position > len(data):
            raise ModelFileError(self.path, f"is truncated or damaged: {where} leaves the file")
        self.position = position
        return tuple(found)
