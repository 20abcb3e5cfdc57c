"""From what a person types to a model's facts: what it remembers, its stored weights, its config.

A path comes before a built-in name, that before a name of the catalogue, and "org/name" that is in
neither is looked up at Hugging Face: its config.json and its file sizes, never its weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdover.errors import ConfigError, ModelFileError
from holdover.files import existing_path, gguf_hint, reading
from holdover.geometry.sizing import ModelMemory, read_memory
from holdover.plan.sizing.question import BUILT_IN
from holdover.plan.sizing.weights import StoredWeights

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w][\w.-]*")
_FILES = (".gguf", ".safetensors", ".json")
_LARGEST_CONFIG_BYTES = 64 << 20

ReadMemory = Callable[[Mapping[str, str], bool], ModelMemory]
"""What the model remembers, under --assume and --mtp."""


@dataclass(frozen=True, slots=True)
class Source:
    """`origin` is "file", "folder", "gguf", "catalogue" or "hub"; `config` is empty where there
    is no config.json."""

    name: str
    origin: str
    config: Mapping[str, Any]
    stored: StoredWeights | None
    read: ReadMemory
    weights_dtype: str | None = None  # where it is known and the config does not say it
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of a GGUF header


def find_source(model: str) -> Source:
    """The facts of a model; raises HoldoverError where there is no such model, or no config."""
    if not model.strip():
        raise ConfigError("model", "is empty; for example llama-3-8b")
    path = existing_path(model)
    if path is not None:
        return _from_path(path)
    if model in BUILT_IN:
        from holdover.weights import locate_header

        return _from_gguf(model, *locate_header(model))
    from holdover.geometry.sizing.catalogue import find_model, in_catalogue

    if in_catalogue(model):
        return _from_catalogue(model)
    if _REPOSITORY.fullmatch(model) and not model.endswith(_FILES):
        from holdover.plan.sizing.hub import repository_source

        return repository_source(model)
    if model.endswith(_FILES) or "/" in model:
        raise ModelFileError(model, "no such file or folder")
    find_model(model)  # says which names are near
    raise AssertionError("unreachable")


def config_source(
    name: str, origin: str, config: Mapping[str, Any], stored: StoredWeights | None = None
) -> Source:
    def read(assume: Mapping[str, str], mtp: bool) -> ModelMemory:
        return read_memory(config, assume=assume, mtp=mtp)

    return Source(name, origin, config, stored, read)


def read_config(path: Path) -> Mapping[str, Any]:
    with reading(path), path.open("rb") as file:
        text = file.read(_LARGEST_CONFIG_BYTES + 1)
    if len(text) > _LARGEST_CONFIG_BYTES:
        raise ModelFileError(path, "is too large for a config.json")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelFileError(path, "is not an object of fields")
    return config


def _from_path(path: Path) -> Source:
    if path.is_dir():
        from holdover.plan.sizing.stored import folder_weights

        if not (path / "config.json").exists():
            raise ModelFileError(path, gguf_hint(path) or "has no config.json")
        config = read_config(path / "config.json")
        return config_source(path.resolve().name, "folder", config, folder_weights(path))
    if path.suffix == ".gguf" or _starts_with(path, b"GGUF"):
        return _from_gguf(path.stem, path)
    if path.suffix == ".safetensors":
        raise ModelFileError(path, f"needs its folder: name {path.parent}, with its config.json")
    return config_source(path.stem, "file", read_config(path))


def _starts_with(path: Path, magic: bytes) -> bool:
    with reading(path), path.open("rb") as file:
        return file.read(len(magic)) == magic


def _from_gguf(name: str, path: Path, whole_bytes: int | None = None) -> Source:
    from holdover.geometry.sizing import read_gguf_memory
    from holdover.plan.sizing.stored import gguf_headers, gguf_weights, tensor_elements

    headers = gguf_headers(path, whole_bytes)
    metadata = headers[path].metadata
    elements = tensor_elements(headers)

    def read(assume: Mapping[str, str], mtp: bool) -> ModelMemory:
        return read_gguf_memory(metadata, tensor_elements=elements, assume=assume, mtp=mtp)

    return Source(name, "gguf", {}, gguf_weights(headers), read, metadata=metadata)


def _from_catalogue(model: str) -> Source:
    from holdover.geometry.sizing.catalogue import find_model

    found = find_model(model)
    stored = None
    if found.checkpoint_bytes is not None:
        kind = found.weights_format or "as published"
        stored = StoredWeights(
            found.checkpoint_bytes, None, kind, "published checkpoint", found.active_bytes,
            found.weights_parts,
        )  # fmt: skip
    read = partial(_catalogued, model)
    return Source(found.name, "catalogue", {}, stored, read, found.weights_format)


def _catalogued(model: str, assume: Mapping[str, str], mtp: bool) -> ModelMemory:
    from holdover.geometry.sizing.catalogue import find_model

    if assume:
        raise ConfigError(
            next(iter(assume)), f"{model} is from the catalogue, where nothing is left to assume"
        )
    return find_model(model, mtp=mtp).memory
