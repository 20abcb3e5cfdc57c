"""How config files state the kind of each layer: one reader for each way, in the order of trust."""

from __future__ import annotations

from holdover.geometry.sizing.layer_lists import (
    Kinds,
    PatternReader,
    kind_of,
    layer_numbers,
    listed,
    slides,
)
from holdover.geometry.sizing.reader import Reader


def _layer_types(reader: Reader, n_layers: int) -> Kinds | None:
    for name in ("layer_types", "layers_block_type"):
        if name in reader.derived and not reader.states(name):
            continue
        if (called := listed(reader, name, n_layers)) is not None:
            return tuple(kind_of(reader, name, one) for one in called)
    return None


def _letters(reader: Reader, n_layers: int) -> Kinds | None:
    """ "M-M*E": one letter per layer."""
    name = "hybrid_override_pattern"
    if reader.model_type == "nemotron_h" and reader.states("layers_block_type", "layer_types"):
        reader.ignore(name)
        return None  # its class drops the letters then
    letters = reader.get(name)
    if letters is None:
        return None
    if not isinstance(letters, str) or len(letters) != n_layers:
        raise reader.wrong(name, f"must have one letter for each of {n_layers} layers")
    return tuple(kind_of(reader, name, letter) for letter in letters)


def _block_cycle(reader: Reader, n_layers: int) -> Kinds | None:
    """A short list that repeats."""
    fields = ("_block_types", "block_types")
    cycle = reader.get(*fields)
    if cycle is None:
        return None
    if not isinstance(cycle, list | tuple) or not cycle:
        raise reader.wrong(fields[0], "must be a list of layer kinds")
    # The attention of these models is local.
    local = {"full": "sliding"} if slides(reader) else {}
    kinds = [kind_of(reader, fields[0], one) for one in cycle]
    return tuple(local.get(k, k) for k in (kinds[i % len(kinds)] for i in range(n_layers)))


def _period_and_offset(reader: Reader, n_layers: int) -> Kinds | None:
    """One attention layer in `attn_layer_period`, mamba elsewhere (Jamba)."""
    if not reader.knows("attn_layer_period", "attn_layer_offset") or reader.model_type == "zamba":
        return None
    period = reader.integer("attn_layer_period")
    offset = reader.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise reader.wrong("attn_layer_offset", f"{offset} is not below the period {period}")
    return tuple("full" if i % period == offset else "linear" for i in range(n_layers))


def _index_lists(reader: Reader, n_layers: int) -> Kinds | None:
    """Lists of layer numbers; all other layers are of the other kind."""
    for name, (kind, other) in INDEX_LISTS.items():
        numbers = reader.get(name)
        if numbers is None or (name == "attn_layer_indices" and reader.model_type == "falcon_h1"):
            continue  # all layers of Falcon H1 have attention beside Mamba
        found = layer_numbers(reader, name, numbers, n_layers)
        return tuple(kind if i in found else other for i in range(n_layers))
    return None


def _numbered_codes(reader: Reader, n_layers: int) -> Kinds | None:
    """Lists of 0 and 1."""
    for name, (zero, one) in CODES.items():
        codes = listed(reader, name, n_layers)
        if codes is not None:
            if not all(isinstance(code, int) and code in (0, 1) for code in codes):
                raise reader.wrong(name, "must be a list of 0 and 1")
            return tuple(one if code else zero for code in codes)
    return None


def _linear_attn_config(reader: Reader, n_layers: int) -> Kinds | None:
    """`full_attn_layers` and `kda_layers`, counted from 1; together they are all layers."""
    part = reader.part("linear_attn_config")
    if part is None or not part.knows("full_attn_layers", "kda_layers"):
        return None
    full, linear = (
        layer_numbers(part, name, part.get(name) or [], n_layers, first=1)
        for name in ("full_attn_layers", "kda_layers")
    )
    if full & linear or len(full | linear) != n_layers:
        raise part.wrong("kda_layers", f"with full_attn_layers must be each of {n_layers} layers")
    kind = "indexed" if reader.knows("index_head_dim") else "full"
    return tuple(kind if i in full else "linear" for i in range(n_layers))


def _attention_types(reader: Reader, n_layers: int) -> Kinds | None:
    """[[["global", "local"], 12]]: kinds that repeat (GPT-Neo)."""
    name = "attention_types"
    runs = reader.get(name)
    if runs is None:
        return None
    try:
        called = [kind for kinds, times in runs for kind in list(kinds) * times]
    except (TypeError, ValueError):
        raise reader.wrong(name, f"{runs!r} is not a list of [kinds, times]") from None
    return tuple(kind_of(reader, name, one) for one in called)


def _sparse_frequency(reader: Reader, n_layers: int) -> Kinds | None:
    """`sparse_attention_config.sparse_attention_freq`: 1 where a layer has an indexer."""
    part = reader.part("sparse_attention_config")
    if part is None or part.get("use_sparse_attention") is False:
        return None
    codes = listed(part, "sparse_attention_freq", n_layers, strict=False)
    if codes is None:
        raise part.missing("sparse_attention_freq")
    if not all(isinstance(code, int) and code in (0, 1) for code in codes):
        raise part.wrong("sparse_attention_freq", "must be a list of 0 and 1")
    return tuple("indexed" if code else "full" for code in codes)


def every_nth(reader: Reader, n_layers: int) -> Kinds | None:
    """A number n, every n-th layer being full, or letters that repeat ("LLLG")."""
    if reader.model_type == "cohere_compass_text":
        return None  # its class has the field, and has made all layers full before it reads it
    for fields, other in EVERY_NTH:
        value = reader.get(*fields)
        if value is None:
            continue
        if other == "sliding" and not slides(reader):
            return None
        if isinstance(value, str) and not value.isdigit():
            kinds = [kind_of(reader, fields[0], letter) for letter in value]
            return tuple(kinds[i % len(kinds)] for i in range(n_layers))
        n = reader.as_integer(value, fields[0])
        if reader.model_type == "cohere2_moe":
            return _dense_first(reader, n, n_layers)
        if reader.model_type in FIRST_OF_PERIOD:
            return tuple("full" if i % n == 0 else other for i in range(n_layers))
        kinds = ["full" if (i + 1) % n == 0 else other for i in range(n_layers)]
        return (*kinds[:-1], "full") if reader.model_type in LAST_IS_FULL else tuple(kinds)
    return None


def _dense_first(reader: Reader, every: int, n_layers: int) -> Kinds:
    """Cohere 2 MoE: the first, dense layers have a period of their own."""
    n_dense = reader.optional_integer("first_k_dense_replace", minimum=0) or 0
    first = reader.integer("prefix_dense_sliding_window_pattern")
    kinds = [
        "full" if (i + 1) % n == 0 else "sliding"
        for n, count in ((first, n_dense), (every, n_layers - n_dense))
        for i in range(count)
    ]
    return tuple(kinds)


# Each field with the kinds of layer that it names, or codes, and of all others.
INDEX_LISTS = {
    "attn_layer_indices": ("full", "linear"),
    "full_attn_idxs": ("full", "conv"),
    "sliding_window_layers": ("sliding", "full"),
    "cross_attention_layers": ("cross", "full"),
    "local_layer_ids": ("hybrid_sliding", "hybrid"),
}
CODES = {  # of 0 and of 1
    "attn_type_list": ("linear", "full"),
    "hybrid_layer_pattern": ("full", "sliding"),
}
EVERY_NTH = (
    (("sliding_window_pattern", "_sliding_window_pattern"), "sliding"),
    (("global_attn_every_n_layers",), "sliding"),
    (("full_attention_interval",), "linear"),
    (("layer_group_size",), "linear"),
)
FIRST_OF_PERIOD = ("modernbert-decoder",)
LAST_IS_FULL = (
    "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text",
)  # fmt: skip


# Each reader and the fields by which a file states what it reads.
STATED: dict[PatternReader, tuple[str, ...]] = {
    _layer_types: ("layer_types", "layers_block_type"),
    _letters: ("hybrid_override_pattern",),
    _block_cycle: ("_block_types", "block_types"),
    _linear_attn_config: ("linear_attn_config",),
    _index_lists: tuple(INDEX_LISTS),
    _numbered_codes: tuple(CODES),
    _sparse_frequency: ("sparse_attention_config",),
    _attention_types: ("attention_types",),
    _period_and_offset: ("attn_layer_period", "attn_layer_offset"),
    every_nth: tuple(name for fields, _ in EVERY_NTH for name in fields),
}  # fmt: skip
# Types whose classes write `layer_types` beside fields of an older rule.
STALE_FIELDS = ("cohere2_moe", "bailing_hybrid")
