"""Key and value heads of one attention layer, under all the names configs give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, exact, per_layer
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import Plane

_WIDEST_HEAD = 65536  # elements


def attention_planes_of(reader: Reader, layer: Layer, sliding: bool) -> tuple[Plane, ...]:
    """(k, v) planes; a value head may be narrower than a key head."""
    own = _own_fields(reader, layer, sliding)
    part = reader.beneath(own)
    query_heads = _number(part, layer, names.QUERY_HEADS, sliding)
    if query_heads is None:
        raise reader.missing(*names.QUERY_HEADS)
    kv_heads = _kv_heads(part, layer, sliding, query_heads)
    if kv_heads > query_heads or query_heads % kv_heads:
        raise reader.wrong(
            names.KV_HEADS[0], f"{kv_heads} KV heads cannot serve {query_heads} query heads evenly"
        )
    head_dim = _number(part, layer, names.HEAD_DIM, sliding)
    if head_dim is None:
        head_dim = exact(part, names.QUERY_HEADS[0], part.integer(*names.HIDDEN), query_heads)
        reader.note(names.HEAD_DIM[0], head_dim, "hidden size / query heads")
    value_dim = _number(part, layer, names.VALUE_DIM, sliding) or head_dim
    if max(head_dim, value_dim) > _WIDEST_HEAD:
        raise reader.wrong(names.HEAD_DIM[0], f"{max(head_dim, value_dim)} is no head's width")
    return (Plane("k", kv_heads, head_dim), Plane("v", kv_heads, value_dim))


def query_heads_of(reader: Reader, layer: Layer, sliding: bool) -> int:
    part = reader.beneath(_own_fields(reader, layer, sliding))
    heads = _number(part, layer, names.QUERY_HEADS, sliding)
    if heads is None:
        raise reader.missing(*names.QUERY_HEADS)
    return heads


def _own_fields(reader: Reader, layer: Layer, sliding: bool) -> Mapping[str, Any]:
    """Fields of this layer or of its kind, under the common names."""
    return {
        **_nested(reader),
        **(_sliding_setting(reader) if sliding else _global_setting(reader)),
        **layer_setting(reader, layer),
    }


def _nested(reader: Reader) -> Mapping[str, Any]:
    """DBRX and MPT nest the number of KV heads."""
    part = reader.part("attn_config") if reader.states("attn_config") else None
    heads = None if part is None else part.optional_integer("kv_n_heads")
    return {} if heads is None else {"num_key_value_heads": heads}


def _global_setting(reader: Reader) -> Mapping[str, Any]:
    """Gemma 4: layers without a window may have wider and fewer heads."""
    found: dict[str, Any] = {}
    if (dim := reader.optional_integer("global_head_dim")) is not None:
        found["head_dim"] = dim
    heads = reader.optional_integer("num_global_key_value_heads")
    if reader.flag("attention_k_eq_v"):
        if heads is None:
            reader.note("num_global_key_value_heads", "as num_key_value_heads", "not stated")
        else:
            found["num_key_value_heads"] = heads
    elif heads is not None and not reader.states("attention_k_eq_v"):
        reader.note("attention_k_eq_v", False, "not stated: the global heads do not count")
    return found


def _sliding_setting(reader: Reader) -> Mapping[str, Any]:
    """Step-3.5 describes the heads of its window layers apart."""
    reader.ignore("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v")
    part = reader.part("attention_other_setting")
    if part is None:
        return {}
    if part.get("attention_type") not in (None, "sliding_attention"):
        raise part.wrong("attention_type", "is not sliding_attention")
    found = {
        "num_attention_heads": part.optional_integer("num_attention_heads"),
        "num_attention_groups": part.optional_integer("num_attention_groups"),
        "head_dim": part.optional_integer("head_dim"),
    }
    return {name: value for name, value in found.items() if value is not None}


def layer_setting(reader: Reader, layer: Layer) -> Mapping[str, Any]:
    """`per_layer_config`: {"05": {"head_dim": 512}}, keys being layer numbers."""
    table = reader.get("per_layer_config")
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise reader.wrong("per_layer_config", "is not an object")
    own: Mapping[str, Any] = {}
    for key, values in table.items():
        if not str(key).isdigit() or not isinstance(values, Mapping):
            raise reader.wrong("per_layer_config", f"{key!r} is not a layer's number and fields")
        if int(key) == layer.index:
            own = values
    return own


def _number(reader: Reader, layer: Layer, aliases: tuple[str, ...], sliding: bool) -> int | None:
    """One count, of window layers where these have their own; may be a list with one per layer."""
    own = names.SLIDING.get(aliases, ()) if sliding else ()
    for group in (own, aliases):
        if group and (value := reader.get(*group)) is not None:
            value = per_layer(reader, value, group[0], layer)
            return reader.as_integer(value, group[0])
    return None


def _kv_heads(reader: Reader, layer: Layer, sliding: bool, query_heads: int) -> int:
    own = names.SLIDING[names.KV_HEADS]
    if sliding and reader.model_type == "mimo_v2_flash" and not reader.states(*own):
        full = reader.integer(*names.KV_HEADS)
        reader.note(own[0], 2 * full, "class rule: twice num_key_value_heads")
        return 2 * full
    for rule in (_falcon, _multi_query, _chatglm):
        if (found := rule(reader, query_heads)) is not None:
            return found
    if sliding and reader.states(*names.SLIDING[names.QUERY_HEADS]) and not reader.states(*own):
        raise reader.missing(*own)
    stated = _number(reader, layer, names.KV_HEADS, sliding)
    if stated is None:
        null = any(name in reader.values for name in names.KV_HEADS)
        if not reader.known and not null:
            raise reader.missing(*names.KV_HEADS)
        said = "null" if null else "not stated"
        reader.note(names.KV_HEADS[0], query_heads, f"{said}: as many as query heads")
        return query_heads
    return stated


def _falcon(reader: Reader, query_heads: int) -> int | None:
    """`num_kv_heads` counts in the new architecture only."""
    if reader.model_type != "falcon":
        return None
    stated = reader.optional_integer("num_kv_heads", "n_head_kv")
    if reader.flag("new_decoder_architecture"):
        return stated or query_heads
    return 1 if reader.flag("multi_query") else query_heads


def _multi_query(reader: Reader, query_heads: int) -> int | None:
    """GPT-BigCode: one KV head, or as many as query heads."""
    if reader.get("multi_query") is None:
        return None
    reader.ignore(*names.KV_HEADS)
    return 1 if reader.flag("multi_query") else query_heads


def _chatglm(reader: Reader, query_heads: int) -> int | None:
    """`multi_query_group_num` counts where `multi_query_attention` is on."""
    if reader.get("multi_query_attention") is None:
        return None
    if reader.flag("multi_query_attention"):
        return reader.integer("multi_query_group_num")
    reader.ignore("multi_query_group_num")
    return query_heads
