"""The layers of a served model, from what sizing read: one reading for plan and engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.errors import UnsupportedModelError
from holdover.geometry.sizing import read_memory
from holdover.spec.layers import LayerSpec
from holdover.spec.memory import Kind
from holdover.spec.residency import Full, Residency, Window


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
