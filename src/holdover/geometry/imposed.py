"""A window that a model was not trained with: in each layer that reads all tokens, only its first
tokens (sinks) and its last ones (StreamingLLM, Xiao et al. 2024, arXiv 2309.17453).

Layers with a window of their own keep it. A query stands among what its layer keeps, so no distance
is ever longer than window and sinks, and a conversation may go on beyond the model's context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdover.errors import ConfigError
from holdover.geometry.base import Geometry
from holdover.spec.layers import LayerSpec
from holdover.spec.residency import Full, Window


@dataclass(frozen=True, slots=True)
class ImposedWindow:
    window_tokens: int
    sink_tokens: int


def with_window(geometry: Geometry, imposed: ImposedWindow) -> Geometry:
    """The geometry with `imposed` in place of full attention.

    Raises ConfigError where no layer reads all tokens, where one keeps other than keys and values,
    and where window and sinks are more than the model was trained to look at.
    """
    full = [layer for layer in geometry.layers if isinstance(layer.residency, Full)]
    if not full:
        raise ConfigError(
            "--window",
            f"no layer of {geometry.architecture} reads all tokens: each has a window of its own, "
            "which is served without this flag",
        )
    if any({plane.name for plane in layer.planes} != {"k", "v"} for layer in full):
        raise ConfigError(
            "--window",
            f"{geometry.architecture} keeps other than keys and values, which cannot be turned to "
            "their place among what a window keeps",
        )
    _check_room(imposed, geometry.max_context_tokens)
    window = Window(imposed.window_tokens, imposed.sink_tokens)
    return replace(geometry, layers=tuple(_windowed(layer, window) for layer in geometry.layers))


def _windowed(layer: LayerSpec, window: Window) -> LayerSpec:
    return replace(layer, residency=window) if isinstance(layer.residency, Full) else layer


def _check_room(imposed: ImposedWindow, model_context_tokens: int) -> None:
    """What a query reads must not be more than the model was trained to look at."""
    n_window, n_sinks = imposed.window_tokens, imposed.sink_tokens
    if n_window + n_sinks <= model_context_tokens:
        return
    beyond = f"are more than the {model_context_tokens} tokens that the model was made for"
    if n_sinks < model_context_tokens:
        most = model_context_tokens - n_sinks
        reason = f"{n_window} and {n_sinks} sinks {beyond}; give --window {most} or less"
        raise ConfigError("--window", reason)
    most = max(0, model_context_tokens - n_window)
    beside = f"{n_sinks} and a window of {n_window} tokens {beyond}"
    raise ConfigError("--sinks", f"{beside}; give --sinks {most} or less" if most else beside)
