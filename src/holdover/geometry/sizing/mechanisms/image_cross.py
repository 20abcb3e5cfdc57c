"""Layers that attend to an image instead of to text (Llama 3.2 Vision): its keys and values."""

from __future__ import annotations

from holdover.geometry.sizing.heads import attention_planes_of
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Fixed

KINDS = frozenset({"cross"})
RANK = 0

_TILES, _IMAGE, _PATCH = 4, 560, 14  # of all published Llama 3.2 Vision models


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("cross_attention_layers") or reader.model_type == "mllama_text_model"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    planes = attention_planes_of(reader, layer, sliding=False)
    n_rows = reader.optional_integer("image_tokens") or _tokens_of_an_image(reader)
    return (
        MemorySpec(Kind.CROSS, f"image, {n_rows} tokens", planes, Fixed(n_rows), (layer.index,)),
    )


def _tokens_of_an_image(reader: Reader) -> int:
    """Patches and a class token of each tile, for one image of the most tiles."""
    vision = reader.whole.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}

    def size(name: str, usual: int) -> int:
        return reader.as_integer(vision.get(name, usual), f"vision_config.{name}")

    tiles = size("max_num_tiles", _TILES)
    side = size("image_size", _IMAGE) // size("patch_size", _PATCH)
    n_rows = tiles * (side**2 + 1)
    reader.note("image_tokens", n_rows, f"one image of {tiles} tiles of {side} x {side} + 1")
    return n_rows
