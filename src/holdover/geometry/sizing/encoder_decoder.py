"""Encoder-decoder models: the decoder's own keys and values, and the encoder output's.

The cross part is as long as the input: `encoder_tokens`, from `assume` or the config's longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdover.geometry._defaults import class_defaults
from holdover.geometry.sizing import names
from holdover.geometry.sizing.layer_lists import credible
from holdover.geometry.sizing.mechanisms.base import exact
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import attention_planes
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Fixed, Full

_LAYERS = ("decoder_layers", "num_decoder_layers")
_HEADS = ("decoder_attention_heads", "num_decoder_attention_heads")
_KV_HEADS = ("decoder_num_key_value_heads",)
_ENCODER_TOKENS = ("encoder_tokens", "max_source_positions")
_LONGEST = ("n_positions", "max_position_embeddings", "max_encoder_position_embeddings")
_ENCODER_ONLY = (
    "encoder_layers", "num_encoder_layers", "encoder_attention_heads",
    "encoder_num_key_value_heads",
)  # fmt: skip
_USUAL_TOKENS = 512  # T5's training length, where nothing says how long an input is


def is_encoder_decoder(reader: Reader) -> bool:
    if _wrapper_says_so(reader):
        return True
    if reader.get("is_encoder_decoder") is None and reader.defaults.get("is_encoder_decoder"):
        reader.note("is_encoder_decoder", True, f"class default of {reader.model_type}")
        return True
    return reader.flag("is_encoder_decoder")


def _wrapper_says_so(reader: Reader) -> bool:
    """The text part of a wrapper is a decoder by what the wrapper is."""
    stated = reader.whole.get("is_encoder_decoder")
    if isinstance(stated, bool):
        return stated and bool(reader.where)
    table = class_defaults(str(reader.whole.get("model_type", "")))
    if table is None or "is_encoder_decoder" in table.derived:  # a class that always sets it
        return table is not None
    if not reader.where or not table.values.get("is_encoder_decoder"):
        return False
    reader.note("is_encoder_decoder", True, "class default of the whole model")
    return True


def decoder_memories(reader: Reader) -> tuple[int, tuple[MemorySpec, ...]]:
    """(number of decoder layers, what they store)."""
    n_layers = reader.optional_integer(*_LAYERS) or reader.integer(*names.LAYERS)
    credible(reader, _LAYERS[0], n_layers)
    heads = reader.optional_integer(*_HEADS) or reader.integer(*names.QUERY_HEADS)
    kv_heads = reader.optional_integer(*_KV_HEADS, *names.KV_HEADS) or heads
    dim = reader.optional_integer(*names.HEAD_DIM)
    if dim is None:
        dim = exact(reader, _HEADS[0], reader.integer(*names.HIDDEN), heads)
    planes = attention_planes(kv_heads, dim)
    layers = tuple(range(n_layers))
    n_rows = encoder_tokens(reader)
    reader.ignore(*_ENCODER_ONLY)
    return n_layers, (
        MemorySpec(Kind.ATTENTION, "full", planes, Full(), layers),
        MemorySpec(Kind.CROSS, f"encoder, {n_rows} tokens", planes, Fixed(n_rows), layers),
    )


def cross_memories(
    reader: Reader, decoder: Reader, memories: Iterable[MemorySpec]
) -> tuple[MemorySpec, ...]:
    """What a decoder with a config of its own keeps beside `memories`: the encoder output's rows
    of each of its attention layers, where these may have heads of their own.
    """
    n_rows = encoder_tokens(reader)
    heads = decoder.optional_integer("cross_num_key_value_heads")
    dim = decoder.optional_integer("cross_head_dim")
    decoder.ignore("cross_num_attention_heads")
    return tuple(
        replace(
            memory,
            kind=Kind.CROSS,
            label=f"encoder, {n_rows} tokens",
            residency=Fixed(n_rows),
            planes=tuple(
                replace(plane, heads=heads or plane.heads, dim=dim or plane.dim)
                for plane in memory.planes
            ),
        )
        for memory in memories
        if memory.kind is Kind.ATTENTION
    )


def encoder_tokens(reader: Reader) -> int:
    stated = reader.optional_integer(*_ENCODER_TOKENS)
    if stated is None:
        stated = next(
            (n for name in _LONGEST if (n := reader.optional_integer(name)) is not None), None
        )
        if stated is None:
            stated = _USUAL_TOKENS
            reader.note("encoder_tokens", stated, "nothing in the file bounds the input")
            return stated
    if not reader.states("encoder_tokens"):
        reader.note("encoder_tokens", stated, "the longest input that the config allows")
    return stated
