"""What reads images and sound: the transformer that its config describes, and the way to the text.

Nothing is read from it while text is generated. A tower that the file does not describe is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.geometry._defaults import class_defaults
from holdover.geometry.sizing.names import TEXT_PARTS
from holdover.geometry.sizing.weights.base import Part, Role, part

_TOWERS = ("vision_config", "audio_config", "visual")
_HIDDEN = ("hidden_size", "embed_dim", "width", "vt_hidden_size", "d_model")
_LAYERS = ("num_hidden_layers", "depth", "layers", "vt_num_hidden_layers", "encoder_layers")
_INNER = ("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim")
# All that is read of a tower.
FIELDS = (
    *_HIDDEN, *_LAYERS, *_INNER, "mlp_ratio", "model_type", "num_global_layers", "out_hidden_size",
    "spatial_merge_size", "deepstack_visual_indexes", "vision_output_dim",
)  # fmt: skip
# Towers whose feed-forward is gated: three matrices.
_GATED = ("pixtral", "glm4v", "gemma4_vision", "qwen2_5_vl")


def tower(config: Mapping[str, Any], text_hidden: int) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """(the towers' matrices, names of towers whose size the file does not say)."""
    parts, missing = [], []
    for name in _TOWERS:
        described = config.get(name)
        if described is None:
            continue
        count = _count(described, text_hidden) if isinstance(described, Mapping) else None
        if count is None:
            missing.append(name)
        else:
            parts.append(part(Role.TOWER, None, count, 0))
    if not parts and not missing and _is_wrapper(config):
        missing.append("vision_config")
    return tuple(parts), tuple(missing)


def _is_wrapper(config: Mapping[str, Any]) -> bool:
    """A text model inside another has a tower beside it, stated or not."""
    table = class_defaults(str(config.get("model_type")))
    inside = {} if table is None else table.parts
    return any(name in inside or isinstance(config.get(name), Mapping) for name in TEXT_PARTS)


def _count(described: Mapping[str, Any], text_hidden: int) -> int | None:
    hidden, layers = _first(described, _HIDDEN), _first(described, _LAYERS)
    inner = _first(described, _INNER)
    if hidden is None or layers is None:
        return None
    if inner is None:
        ratio = described.get("mlp_ratio")
        if not isinstance(ratio, int | float) or not 0 < ratio <= 64:
            return None
        inner = int(hidden * ratio)
    kind = str(described.get("model_type", ""))
    gated = kind.startswith(_GATED)
    layers += _first(described, ("num_global_layers",)) or 0
    out = _first(described, ("out_hidden_size",))
    if kind.startswith("glm4v"):  # its width is the merger's, out_hidden_size the blocks'
        inner = out or inner
    block = 4 * hidden**2 + (3 if gated else 2) * hidden * inner
    return layers * block + _merger(described, hidden, out, text_hidden)


def _merger(described: Mapping[str, Any], hidden: int, out: int | None, text_hidden: int) -> int:
    """From patches to tokens of the text model."""
    side = _first(described, ("spatial_merge_size",))
    if side is not None and out is not None:
        wide = hidden * side**2
        deep = described.get("deepstack_visual_indexes")
        times = 1 + (len(deep) if isinstance(deep, list) else 0)
        return times * wide * (wide + out)
    width = _first(described, ("vision_output_dim",)) or hidden
    return width * text_hidden


def _first(described: Mapping[str, Any], aliases: tuple[str, ...]) -> int | None:
    for name in aliases:
        value = described.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
