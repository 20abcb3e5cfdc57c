"""A tokenizer from a model folder: tokenizer.json, and what lies beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from holdover.errors import ModelFileError
from holdover.files import read_json
from holdover.text.chat import ChatTemplate
from holdover.text.tokenizer import Tokenizer, TokenizerSource, assemble_tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def tokenizer_from_folder(source: TokenizerSource) -> Tokenizer:
    folder = source.path
    backend = _backend(folder / "tokenizer.json")
    settings = _optional_json(folder / "tokenizer_config.json")
    names = {name: text for name in _NAMES if (text := _token_text(settings.get(name)))}
    bos = _id_of(backend, names.get("bos_token"))
    if bos is None:
        bos = source.config.get("bos_token_id")
    prefix, suffix = _around(backend)
    if settings.get("add_bos_token") is True and bos is not None and bos not in prefix:
        prefix = [bos, *prefix]
    template = _template_text(folder, settings)
    return assemble_tokenizer(
        folder,
        backend,
        bos_token_id=bos,
        eos_token_ids=_ends(source, backend, names),
        around=(prefix, suffix),
        template=ChatTemplate(folder, template, names) if template else None,
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise ModelFileError(path, "is missing; the model cannot be served without its tokenizer")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ModelFileError(path, f"cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer's own post-processor puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _ends(
    source: TokenizerSource, backend: tokenizers.Tokenizer, names: Mapping[str, str]
) -> list[int]:
    generation = _optional_json(source.path / "generation_config.json")
    ends: list[int] = []
    for value in (
        generation.get("eos_token_id"),
        source.config.get("eos_token_id"),
        _id_of(backend, names.get("eos_token")),
    ):
        if value is not None:
            ends += value if isinstance(value, Sequence) else [value]
    return ends


def _id_of(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json: a string, or an object with `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _template_text(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(file, f"cannot be read: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, or nothing where there is no such file. A damaged one is an error."""
    return read_json(path) if path.exists() else {}
