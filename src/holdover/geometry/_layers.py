"""The layers of a served model, from what sizing read: one reading for plan and engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from holdover.errors import UnsupportedModelError
from holdover.geometry._fields import Fields
from holdover.geometry.sizing import read_memory
from holdover.spec.layers import LayerSpec
from holdover.spec.memory import Kind
from holdover.spec.residency import Full, Residency, Window


class Common(TypedDict):
    """What a `Geometry` has from fields of the same names in every family."""

    layers: tuple[LayerSpec, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_context_tokens: int
    tied_embeddings: bool
    norm_eps: float
    stored_dtype: str | None


def common_numbers(
    fields: Fields, config: Mapping[str, Any], model_type: str, limit_tokens: int
) -> Common:
    """`config` is the whole one, of which `fields` may be a part."""
    return Common(
        layers=served_layers({**config, "model_type": model_type}, limit_tokens),
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        max_context_tokens=limit_tokens,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        stored_dtype=fields.get("dtype") or fields.get("torch_dtype"),
    )


def served_layers(config: Mapping[str, Any], limit_tokens: int) -> tuple[LayerSpec, ...]:
    """One LayerSpec per layer. A window as long as the longest context is no window.

    Raises UnsupportedModelError for a layer that stores anything but keys and values of all
    tokens or of a window.
    """
    memory = read_memory(config)
    layers: dict[int, LayerSpec] = {}
    for group in memory.memories:
        residency: Residency
        if isinstance(group.residency, Window):
            window = group.residency
            residency = window if window.window_tokens < limit_tokens else Full()
        elif isinstance(group.residency, Full) and group.kind is Kind.ATTENTION:
            residency = group.residency
        else:
            raise UnsupportedModelError(
                f"layer type {group.label!r} is not supported; "
                "supported: full_attention, sliding_attention"
            )
        layers |= {layer: LayerSpec(group.planes, residency) for layer in group.layers}
    if sorted(layers) != list(range(memory.n_layers)):
        raise UnsupportedModelError("a model with layers that store nothing is not supported")
    return tuple(layers[index] for index in range(memory.n_layers))
