"""Multi-head latent attention: one latent and one rotary key per token, whatever the heads.

DeepSeek-V2/V3, Kimi, MiniCPM3. With `index_head_dim` a sparse indexer stores its own keys beside
it (DeepSeek-V3.2, GLM-5), except in layers that share an earlier layer's choice.
"""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.heads import layer_setting
from holdover.geometry.sizing.layer_lists import listed
from holdover.geometry.sizing.mechanisms.attention import residency_of
from holdover.geometry.sizing.mechanisms.base import Layer, index_keys
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec, Sharding

KINDS = frozenset({"full", "sliding", "indexed"})
RANK = 10


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("kv_lora_rank") or reader.knows("qk_nope_head_dim", "qk_rope_head_dim")


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    label, residency = residency_of(reader, layer)
    reader.ignore(*names.KV_HEADS, *names.HEAD_DIM, *names.VALUE_DIM, *names.QUERY_HEADS)
    planes = _planes(reader, layer)
    latent = MemorySpec(
        Kind.ATTENTION, "mla" if label == "full" else f"mla, {label}", planes, residency,
        (layer.index,), sharding=Sharding.REPLICATED,
    )  # fmt: skip
    if not _has_own_indexer(reader, layer):
        return (latent,)
    return latent, index_keys("index", layer, reader.integer("index_head_dim"))


def _planes(reader: Reader, layer: Layer) -> tuple[Plane, ...]:
    latent = reader.integer("kv_lora_rank")
    rope = reader.integer("qk_rope_head_dim", minimum=0)
    if reader.model_type == "dots3_note_text" and layer.kind == "sliding":
        latent, rope = _window_widths(reader, layer)
    planes = (Plane("latent", 1, latent), Plane("rope", 1, rope))
    return planes if rope and _has_rope(reader, layer) else planes[:1]


def _window_widths(reader: Reader, layer: Layer) -> tuple[int, int]:
    """Dots 3: window layers have wider latents, under names of their own or in a table of layers.

    The numbers are those of the class where the file states neither.
    """
    reader.ignore("swa_num_attention_heads", "swa_num_key_value_heads", "swa_v_head_dim")
    reader.ignore("swa_q_lora_rank")
    own = layer_setting(reader, layer)
    part = reader.beneath({f"swa_{name}": value for name, value in own.items()})

    def width(name: str, usual: int) -> int:
        stated = part.optional_integer(f"swa_{name}")
        if stated is None:
            reader.note(f"swa_{name}", usual, f"class default of {reader.model_type}")
        return stated or usual

    rope = part.optional_integer("swa_qk_rope_head_dim")
    if rope is None:
        rope = width("head_dim", 256) - width("qk_nope_head_dim", 192)
        if rope < 1:
            raise reader.wrong("swa_head_dim", "leaves no rotary part beside swa_qk_nope_head_dim")
    else:
        reader.ignore("swa_head_dim", "swa_qk_nope_head_dim")
    return width("kv_lora_rank", 1024), rope


def _has_rope(reader: Reader, layer: Layer) -> bool:
    """Mistral Large 4: every fourth layer has no rotary positions, and no rotary key."""
    if reader.model_type != "mistral_large4_text":
        return True
    ropes = listed(reader, "no_rope_layers", layer.n_layers)
    if ropes is not None and layer.index < layer.n_layers:
        return bool(ropes[layer.index])
    every = reader.optional_integer("no_rope_layer_interval") or 4
    if layer.index < layer.n_layers:
        reader.note("no_rope_layer_interval", every, f"class default of {reader.model_type}")
    return (layer.index + 1) % every != 0


def _has_own_indexer(reader: Reader, layer: Layer) -> bool:
    if layer.kind == "sliding":
        return False
    if not reader.knows("index_head_dim"):
        if layer.kind == "indexed":
            raise reader.missing("index_head_dim")
        return False
    if layer.index >= layer.n_layers:
        return True
    name = "indexer_types"
    types = (
        None
        if name in reader.derived and not reader.states(name)
        else listed(reader, name, layer.n_layers)
    )
    if types is None:
        return _by_frequency(reader, layer)
    reader.ignore("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
    kind = types[layer.index]
    if kind not in ("full", "shared"):
        raise reader.wrong(name, f"{kind!r} is neither full nor shared")
    return bool(kind == "full")


def _by_frequency(reader: Reader, layer: Layer) -> bool:
    """Every `index_topk_freq`-th layer chooses, counted from `index_skip_topk_offset`."""
    if reader.model_type in ("hy_v4", "hy_v4_vl_text"):
        return layer.index == 0 or (layer.index - 1) % 4 == 0
    pattern = reader.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str | list) or len(pattern) < layer.n_layers:
            raise reader.wrong("index_topk_pattern", "needs a letter for each layer")
        if (letter := pattern[layer.index]) not in ("F", "S", "full", "shared"):
            raise reader.wrong("index_topk_pattern", f"{letter!r} is neither F nor S")
        return letter in ("F", "full")
    every = reader.optional_integer("index_topk_freq") or 1
    offset = reader.optional_integer("index_skip_topk_offset", minimum=0)
    return max(layer.index - (2 if offset is None else offset) + 1, 0) % every == 0
