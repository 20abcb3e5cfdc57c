"""The steps of `read_memory`: text model, layer kinds, what each layer stores, groups, audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing import names
from holdover.geometry.sizing.audit import refuse_declared, refuse_unknown, refuse_unread
from holdover.geometry.sizing.base import ModelMemory
from holdover.geometry.sizing.encoder_decoder import (
    cross_memories,
    decoder_memories,
    is_encoder_decoder,
)
from holdover.geometry.sizing.layer_lists import layer_count
from holdover.geometry.sizing.loops import passes
from holdover.geometry.sizing.mechanisms.base import Layer, mechanisms, stores_of
from holdover.geometry.sizing.mtp import mtp_layers
from holdover.geometry.sizing.patterns import read_kinds
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.sharing import storing_layers
from holdover.geometry.sizing.unwrap import decoder_part, text_reader
from holdover.spec.memory import Kind, MemorySpec


def read(
    config: Mapping[str, Any],
    assume: Mapping[str, str],
    mtp: bool,
) -> ModelMemory:
    if not isinstance(config, Mapping):
        raise ConfigError("config", "is not an object of fields")
    return model_memory(text_reader(config, assume), config, mtp)


def model_memory(reader: Reader, config: Mapping[str, Any], mtp: bool) -> ModelMemory:
    """What `reader`'s text model remembers; `config` is the whole file."""
    refuse_unknown(reader)
    if is_encoder_decoder(reader):
        decoder = decoder_part(reader)
        if decoder is None:
            n_layers, memories = decoder_memories(reader)
        else:
            reader, encoder = decoder, reader
            n_layers = layer_count(reader)
            memories = _grouped(_stores(reader, n_layers, mtp))
            memories += _grouped(cross_memories(encoder, reader, memories))
    else:
        n_layers = layer_count(reader)
        memories = _grouped(_stores(reader, n_layers, mtp))
    context_tokens = reader.first_integer(*names.CONTEXT)
    refuse_unread(reader)
    refuse_declared(reader)
    if not reader.known:
        reader.note("model_type", reader.model_type, "not a known type; read as its fields say")
    return ModelMemory(
        architecture=_architecture(config, reader),
        model_type=reader.model_type,
        n_layers=n_layers,
        memories=memories,
        max_context_tokens=context_tokens,
        parameters=None,
        stored_dtype=_stored_dtype(config, reader),
        assumptions=tuple(reader.assumptions),
    )


def _stores(reader: Reader, n_layers: int, mtp: bool) -> Iterable[MemorySpec]:
    found = mechanisms()
    own = storing_layers(reader, n_layers)
    kinds = read_kinds(reader, n_layers)
    for number, index in enumerate(passes(reader, n_layers)):
        for memory in stores_of(found, reader, Layer(index, n_layers, kinds[index])):
            if index in own or memory.kind is not Kind.ATTENTION:
                yield replace(memory, layers=(number,))
    for layer in mtp_layers(reader, n_layers, mtp):
        for memory in stores_of(found, reader, layer):
            yield replace(memory, label=f"{memory.label} (mtp)")


def _grouped(stores: Iterable[MemorySpec]) -> tuple[MemorySpec, ...]:
    """Equal memories of different layers as one."""
    groups: dict[MemorySpec, list[int]] = {}
    for memory in stores:
        groups.setdefault(replace(memory, layers=()), []).extend(memory.layers)
    return tuple(replace(memory, layers=tuple(layers)) for memory, layers in groups.items())


def _architecture(config: Mapping[str, Any], reader: Reader) -> str:
    named = config.get("architectures") or reader.values.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else reader.model_type


def _stored_dtype(config: Mapping[str, Any], reader: Reader) -> str | None:
    for values in (reader.values, config):
        for name in ("dtype", "torch_dtype"):
            if isinstance(values.get(name), str):
                return str(values[name])
    return None
