"""Which part of a config is the text model, and what class it is of.

A wrapper keeps the text model under `text_config` or another name, perhaps two deep; types and
class defaults come with it. Keys that only the wrapper states are not the text model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry._defaults import class_defaults
from holdover.geometry.sizing.names import HIDDEN, LAYERS, QUERY_HEADS, REMOTE_TYPES, TEXT_PARTS
from holdover.geometry.sizing.reader import Reader


def text_reader(config: Mapping[str, Any], assume: Mapping[str, str]) -> Reader:
    """A reader of the text model."""
    values, where, model_type = config, "", _type_of(config, "")
    while (found := _text_part(values, where)) is not None:
        name, part = found
        parts = _parts(model_type)
        stated = _type_of(part, f"{where}{name}.")
        model_type = str(stated or parts.get(name, {}).get("model_type") or model_type)
        beside = {k: v for k, v in parts.get(name, {}).items() if k != "model_type"}
        values, where = {**beside, **part}, f"{where}{name}."
    if not where or (model_type and model_type == config.get("model_type")):
        model_type = _text_type(model_type, values)
    if (said := assume.get("model_type")) is not None:
        reader = _reader(values, where, said, config, assume)
        reader.note("model_type", said, "--assume")
        return reader
    return _reader(values, where, model_type, config, assume)


def _reader(
    values: Mapping[str, Any], where: str, model_type: str, whole: Mapping[str, Any],
    assume: Mapping[str, str],
) -> Reader:  # fmt: skip
    known_as = model_type
    table = class_defaults(model_type)
    if table is None and model_type in REMOTE_TYPES:
        known_as = REMOTE_TYPES[model_type] or model_type
        table = class_defaults(known_as)
        if table is None:
            return Reader(values, {}, known_as, assume, where, whole=whole)
    if table is None:
        return _unknown_reader(values, where, model_type, whole, assume)
    return Reader(
        values, table.values, known_as, assume, where, table.derived, table.aliases, whole
    )


def _unknown_reader(
    values: Mapping[str, Any], where: str, model_type: str, whole: Mapping[str, Any],
    assume: Mapping[str, str],
) -> Reader:  # fmt: skip
    """A type that only a newer transformers knows, or nobody: see `audit.refuse_unknown`."""
    from holdover.geometry._installed import installed_defaults, installed_version

    found = installed_defaults(model_type, values, where) if model_type else None
    if found is None:
        return Reader(values, {}, model_type, assume, where, whole=whole, known=False)
    return Reader(
        values, found.values, model_type, assume, where, aliases=found.aliases, whole=whole,
        known=False, installed=installed_version(),
    )  # fmt: skip


def decoder_part(reader: Reader) -> Reader | None:
    """The decoder of an encoder-decoder that gives it a config of its own."""
    for name in ("decoder", "decoder_config"):
        values = reader.values.get(name)
        if isinstance(values, Mapping):
            where = f"{reader.where}{name}."
            model_type = _type_of(values, where) or str(
                _parts(reader.model_type).get(name, {}).get("model_type", "")
            )
            reader.ignore(name)
            return _reader(values, where, model_type, reader.whole, reader.assume)
    return None


def _type_of(config: Mapping[str, Any], where: str) -> str:
    value = config.get("model_type")
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}model_type", f"{value!r} is not a name")
    return value or ""


def _text_part(values: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]] | None:
    found = [name for name in TEXT_PARTS if isinstance(values.get(name), Mapping)]
    if len(found) > 1:
        raise ConfigError(
            f"{where}{found[0]}", f"and {found[1]} are both there; which is the text?"
        )
    for name in TEXT_PARTS:
        if name in values and not isinstance(values[name], Mapping) and values[name] is not None:
            raise ConfigError(f"{where}{name}", f"{values[name]!r} is not an object")
    return (found[0], values[found[0]]) if found else None


def _parts(model_type: str) -> Mapping[str, Mapping[str, Any]]:
    table = class_defaults(model_type)
    return {} if table is None else table.parts


def _text_type(model_type: str, values: Mapping[str, Any]) -> str:
    """A wrapper's type on a config that is the text model itself: the type of its text part."""
    part = _parts(model_type).get("text_config")
    stated = any(name in values for name in (*LAYERS, *QUERY_HEADS, *HIDDEN))
    return str(part["model_type"]) if part is not None and stated else model_type
