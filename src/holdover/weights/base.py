"""What a model file offers, whatever its format.

A `Checkpoint` shows a Hugging Face style config and tensor names with Hugging Face layouts, so one
geometry reader and one family reader serve every format. Everything but `load` comes from headers
and imports no torch. Readers raise `ModelFileError` for a damaged file and `UnsupportedModelError`
for a sound file of a kind that is not served.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdover.errors import ModelFileError
from holdover.files import reading
from holdover.weights._digests import remembered_digest

if TYPE_CHECKING:
    import torch

_HASH_PIECE_BYTES = 4 << 20
_HASH_THREADS = 2


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as stored: `dtype_name` is the file's own ("Q4_1", "BF16"), `n_bytes` its size."""

    shape: tuple[int, ...]
    dtype_name: str
    n_elements: int
    n_bytes: int


class Checkpoint(Protocol):
    """A model on disk: config and tensor table at once, tensor values on request."""

    @property
    def path(self) -> Path:
        """The GGUF file, or the folder of config.json and safetensors."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Text model's config in Hugging Face keys; see `holdover.weights.config`."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Every key of a GGUF header; empty for a folder."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Stored tensors of the text model by Hugging Face name."""

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Read, dequantise and convert one tensor; Hugging Face row order and norm convention."""

    def digest(self) -> bytes:
        """32 bytes that change when any byte that shapes the model's output changes."""


def require_tensors(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every expected tensor is there with its shape; names the first that are not."""
    problems = []
    for name, shape in expected.items():
        info = checkpoint.tensors.get(name)
        if info is None:
            problems.append(f"tensor {name} is missing")
        elif info.shape != tuple(shape):
            problems.append(
                f"tensor {name} has shape {list(info.shape)}, its config asks for {list(shape)}"
            )
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ModelFileError(checkpoint.path, "; ".join(problems[:3]) + more)


def missing_tensor(path: Path, name: str, names: Collection[str]) -> ModelFileError:
    """The error for a tensor that was asked for by a name the file does not have."""
    return ModelFileError(path, f"has no tensor {name} among its {len(names)}")


def file_digest(path: Path) -> bytes:
    """Of the file's content; of a large one that is still as it was, without reading it."""
    return remembered_digest(path, content_digest)


def content_digest(path: Path) -> bytes:
    """blake2b over the digests of the file's 4 MiB pieces, so that threads share the work."""
    with reading(path), path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            return blake2b(b"", digest_size=32).digest()
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):

            def piece_digest(start: int) -> bytes:
                with view[start : start + _HASH_PIECE_BYTES] as piece:
                    return blake2b(piece, digest_size=32).digest()

            with ThreadPoolExecutor(_HASH_THREADS) as pool:
                pieces = list(pool.map(piece_digest, range(0, size, _HASH_PIECE_BYTES)))
    root = blake2b(digest_size=32)
    root.update(size.to_bytes(8, "little"))
    for piece in pieces:
        root.update(piece)
    return root.digest()
