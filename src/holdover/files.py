"""Reading a model's files: whatever goes wrong is a `ModelFileError` that names the file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError, ModelFileError


def typed_path(text: str, field: str) -> Path:
    """The path that a person typed; raises ConfigError for the home of nobody."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(field, f"{text!r}: {error}") from error


def existing_path(text: str, field: str = "model") -> Path | None:
    """The file or folder that `text` names, None where there is none."""
    path = typed_path(text, field)
    try:
        return path if text and path.exists() else None
    except OSError as error:  # no permission, a name too long
        raise ModelFileError(text, f"cannot be read: {error.strerror}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around whatever reads `path`. A pipe would be waited for without end, and a device has no
    end: neither is read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelFileError(path, "is neither a file nor a folder")
        yield
    except FileNotFoundError as error:
        raise ModelFileError(path, "is missing") from error
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    with reading(path):
        raw = path.read_bytes()
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "does not hold a JSON object")
    return value


def gguf_hint(folder: Path) -> str | None:
    """What is wrong with a folder without config.json that holds GGUF files; None of any other."""
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob("*.gguf"))
    if not files:
        return None
    more = f" (it holds {len(files)})" if len(files) > 1 else ""
    return f"is a folder without config.json; for the GGUF file in it give {files[0]}{more}"


def write_text(path: Path, text: str, flag: str) -> None:
    """Raises ConfigError, with the flag that names the file, where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(flag, f"{path} cannot be written: {error.strerror}") from error


def cache_folder() -> Path:
    """Where what can be made again is kept: XDG_CACHE_HOME or its default, under holdover."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    return (Path(base) if base else Path.home() / ".cache") / "holdover"
