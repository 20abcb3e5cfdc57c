"""Which kind each layer is: every way in which configs and config classes say it.

`read_kinds` tries what the file states, most explicit first, then the rule of the model type's
class. Layers are numbered from 0; kinds are those of `names.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.names import KINDS
from holdover.geometry.sizing.reader import Reader

Kinds = tuple[str, ...]
PatternReader = Callable[[Reader, int], Kinds | None]


def read_kinds(reader: Reader, n_layers: int) -> Kinds:
    """The kind of each of `n_layers`, MTP layers not among them."""
    chosen: Kinds | None = None
    for read in STATED:
        # A period is the rule for files that list no layers: classes write a stale one beside.
        superseded = read is _every_nth or not reader.states(*STATED[read])
        if chosen is not None and superseded:
            reader.ignore(*STATED[read])
            continue
        kinds = read(reader, n_layers)
        if kinds is None:
            continue
        if len(kinds) != n_layers:
            raise reader.wrong("num_hidden_layers", f"{n_layers}, but {len(kinds)} are listed")
        if chosen is not None and kinds != chosen and reader.model_type not in _STALE_FIELDS:
            raise reader.wrong(STATED[read][0], "says other kinds of layers than layer_types")
        chosen = chosen or kinds
    chosen = chosen or _class_rule(reader, n_layers)
    if chosen is not None:
        _ignore_other_kinds(reader, chosen)
    return chosen or (_same_everywhere(reader),) * n_layers


def _same_everywhere(reader: Reader) -> str:
    """All layers are alike; only a class that is known to slide everywhere does."""
    if not slides(reader):
        return "full"
    stated = next((name for name in names.WINDOW if reader.states(name)), names.WINDOW[0])
    if not any(name in reader.defaults for name in names.WINDOW):
        raise reader.wrong(
            stated,
            f"is there, and which layers of {reader.model_type or 'this model'} slide is "
            "not known. Give them with --assume layer_types='[\"full_attention\", ...]', or say "
            f"--assume {stated}=null",
        )
    return "sliding"


def _ignore_other_kinds(reader: Reader, kinds: Kinds) -> None:
    """A window without a layer that slides decides nothing, and so on."""
    if not any("sliding" in kind or "compressed" in kind for kind in kinds):
        reader.ignore(*names.WINDOW, "sliding_window_pattern", "local_attention")
    reader.ignore("prefix_dense_sliding_window_pattern")
    if reader.states("layers_block_type", "layer_types"):
        reader.ignore("attn_layer_period", "attn_layer_offset")
    if "conv" not in kinds:
        reader.ignore("conv_L_cache")
    if "indexed" not in kinds and not reader.knows("kv_lora_rank"):
        reader.ignore("index_head_dim", "index_block_size", "index_local_blocks")


def layer_count(reader: Reader) -> int:
    """The number of layers; the length of a stated list of layers where no number is stated."""
    if not reader.states(*names.LAYERS):
        for name in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
            called = reader.values.get(name)
            if isinstance(called, list | str) and called:
                reader.note(names.LAYERS[0], len(called), f"length of {name}")
                reader.ignore(*names.LAYERS)
                return len(called)
    return reader.integer(*names.LAYERS)


def slides(reader: Reader) -> bool:
    """Whether windows are in use at all."""
    if reader.get("use_sliding_window") is False:
        reader.ignore(*names.WINDOW, "max_window_layers")
        return False
    window = reader.get(*names.WINDOW)
    silent = not any(name in reader.values for name in names.WINDOW)
    if window is None and silent and "sliding_window" in reader.defaults:
        reader.note("sliding_window", "none", reader.defaults_source)
    return window is not None


def listed(reader: Reader, name: str, n_layers: int, at_least: bool = True) -> list[Any] | None:
    """A list with one entry per layer; further entries are of MTP layers."""
    value = reader.get(name)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) < n_layers:
        raise reader.wrong(name, f"must be a list with an entry for each of {n_layers} layers")
    if len(value) > n_layers and not at_least:
        raise reader.wrong(name, f"has {len(value)} entries for {n_layers} layers")
    return list(value[:n_layers])


def kind_of(reader: Reader, name: str, called: Any) -> str:
    if not isinstance(called, str) or called not in KINDS:
        raise reader.wrong(name, f"{called!r} is a kind of layer that is not known")
    return KINDS[called]


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
    for name, kind, other in (
        ("attn_layer_indices", "full", "linear"),
        ("full_attn_idxs", "full", "conv"),
        ("sliding_window_layers", "sliding", "full"),
        ("cross_attention_layers", "cross", "full"),
        ("local_layer_ids", "hybrid_sliding", "hybrid"),
    ):
        numbers = reader.get(name)
        if numbers is None or (name == "attn_layer_indices" and _all_parallel(reader)):
            continue
        found = layer_numbers(reader, name, numbers, n_layers)
        return tuple(kind if i in found else other for i in range(n_layers))
    return None


def _all_parallel(reader: Reader) -> bool:
    return reader.model_type == "falcon_h1"


def layer_numbers(
    reader: Reader, name: str, numbers: Any, n_layers: int, first: int = 0
) -> frozenset[int]:
    """Layer numbers counted from `first`, as a set counted from 0."""
    if not isinstance(numbers, list | tuple):
        raise reader.wrong(name, f"{numbers!r} is not a list of layer numbers")
    found = [reader.as_integer(number, name, first) - first for number in numbers]
    if len(set(found)) != len(found) or any(number >= n_layers for number in found):
        raise reader.wrong(name, f"must name different layers below {n_layers + first}")
    return frozenset(found)


def _numbered_codes(reader: Reader, n_layers: int) -> Kinds | None:
    """Lists of 0 and 1."""
    for name, zero, one in (
        ("attn_type_list", "linear", "full"),
        ("hybrid_layer_pattern", "full", "sliding"),
    ):
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
    codes = listed(part, "sparse_attention_freq", n_layers)
    if codes is None:
        raise part.missing("sparse_attention_freq")
    if not all(isinstance(code, int) and code in (0, 1) for code in codes):
        raise part.wrong("sparse_attention_freq", "must be a list of 0 and 1")
    return tuple("indexed" if code else "full" for code in codes)


def _every_nth(reader: Reader, n_layers: int) -> Kinds | None:
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
        return _with_last(reader, kinds)
    return None


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


def _with_last(reader: Reader, kinds: list[str]) -> Kinds:
    return (*kinds[:-1], "full") if reader.model_type in LAST_IS_FULL else tuple(kinds)


# Each reader and the fields by which a file states what it reads.
STATED: dict[PatternReader, tuple[str, ...]] = {
    _layer_types: ("layer_types", "layers_block_type"),
    _letters: ("hybrid_override_pattern",),
    _block_cycle: ("_block_types", "block_types"),
    _linear_attn_config: ("linear_attn_config",),
    _index_lists: (
        "attn_layer_indices", "full_attn_idxs", "sliding_window_layers", "cross_attention_layers",
        "local_layer_ids",
    ),
    _numbered_codes: ("attn_type_list", "hybrid_layer_pattern"),
    _sparse_frequency: ("sparse_attention_config",),
    _attention_types: ("attention_types",),
    _period_and_offset: ("attn_layer_period", "attn_layer_offset"),
    _every_nth: (
        "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
        "full_attention_interval", "layer_group_size",
    ),
}  # fmt: skip
# Types whose classes write `layer_types` beside fields of an older rule.
_STALE_FIELDS = ("cohere2_moe", "bailing_hybrid")


def _nth(n: int, other: str, nth: str = "full", last: bool = False) -> PatternReader:
    """Layers n-1, 2n-1, ... are `nth`, and the last one where the class forces it."""

    def read(reader: Reader, n_layers: int) -> Kinds:
        kinds = [nth if (i + 1) % n == 0 else other for i in range(n_layers)]
        return (*kinds[:-1], nth) if last else tuple(kinds)

    return read


def _where(rule: Callable[[int, int], str]) -> PatternReader:
    return lambda reader, n_layers: tuple(rule(i, n_layers) for i in range(n_layers))


def _from_depth(reader: Reader, n_layers: int) -> Kinds:
    """Qwen2: layers from `max_window_layers` on slide, if windows are in use."""
    if not slides(reader) or not reader.flag("use_sliding_window"):
        return ("full",) * n_layers
    first = reader.integer("max_window_layers", minimum=0)
    return tuple("sliding" if i >= first else "full" for i in range(n_layers))


def _qwen2_moe(reader: Reader, n_layers: int) -> Kinds:
    if not slides(reader) or not reader.flag("use_sliding_window"):
        return ("full",) * n_layers
    stop = reader.integer("max_window_layers", minimum=0)
    return tuple("sliding" if (i + 1) % 2 and i < stop else "full" for i in range(n_layers))


def _no_rule(reader: Reader, n_layers: int) -> Kinds:
    """Which layers attend to an image differs between sizes."""
    raise reader.missing("cross_attention_layers")


def _chunked(reader: Reader, n_layers: int) -> Kinds:
    """Llama 4: layers without rotary positions see everything, the others their chunk."""
    if reader.get("attention_chunk_size") is None:
        return ("full",) * n_layers
    ropes = listed(reader, "no_rope_layers", n_layers)
    if ropes is None or ropes == []:
        n = reader.optional_integer("no_rope_layer_interval") or 4
        ropes = [int((i + 1) % n != 0) for i in range(n_layers)]
    return tuple("chunked" if rope else "full" for rope in ropes)


def _no_rope_slides(reader: Reader, n_layers: int) -> Kinds:
    """SmolLM3: layers without rotary positions slide, if windows are in use."""
    if not reader.flag("use_sliding_window") or reader.get("sliding_window") is None:
        return ("full",) * n_layers
    ropes = listed(reader, "no_rope_layers", n_layers)
    n = reader.integer("no_rope_layer_interval") if ropes is None else 1
    ropes = ropes or [int((i + 1) % n != 0) for i in range(n_layers)]
    return tuple("full" if rope else "sliding" for rope in ropes)


def _zamba(reader: Reader, n_layers: int) -> Kinds:
    period, offset = reader.integer("attn_layer_period"), reader.integer("attn_layer_offset")
    kinds = ("linear", "linear", "hybrid", *(
        "hybrid" if i % period == offset else "linear" for i in range(n_layers - 3)
    ))  # fmt: skip
    return kinds[:n_layers]


def _zamba2(reader: Reader, n_layers: int) -> Kinds:
    """The published layers of 54; `hybrid_layer_ids` where stated."""
    numbers = reader.get("hybrid_layer_ids")
    if numbers is None and n_layers == 54:
        numbers = [*range(6, 43, 6), 47, 51]
        reader.note("layers_block_type", "shared attention at 6, 12, ... 42, 47, 51", "class rule")
    if numbers is None:
        raise reader.missing("layers_block_type", "hybrid_layer_ids")
    found = layer_numbers(reader, "hybrid_layer_ids", numbers, n_layers)
    return tuple("hybrid" if i in found else "linear" for i in range(n_layers))


def _everywhere(reader: Reader, n_layers: int) -> Kinds:
    return ("sliding" if slides(reader) else "full",) * n_layers


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


def _dots3(reader: Reader, n_layers: int) -> Kinds:
    kind = "full" if reader.get("use_dsa") is False else "indexed"
    if reader.get("use_sliding_window") is False:
        return (kind,) * n_layers
    return tuple(kind if i < 2 or i % 4 == 1 else "sliding" for i in range(n_layers))


def _cycle(*kinds: str) -> PatternReader:
    return _where(lambda i, n: kinds[i % len(kinds)])


def _compressed(reader: Reader, n_layers: int) -> Kinds | None:
    """DeepSeek-V4's class: heavily compressed twice, then in turns."""

    def kind(i: int, n: int) -> str:
        return "compressed_sparse" if i >= 2 and i % 2 else "heavily_compressed"

    if reader.get("compress_ratios") is not None:
        return ("compressed",) * n_layers
    return _where(kind)(reader, n_layers)


# What a class works out where the file says nothing, per model type.
CLASS_RULES: dict[str, PatternReader] = {
    **dict.fromkeys(("gemma2", "vaultgemma", "t5_gemma_module", "gpt_oss"), _nth(2, "sliding")),
    **dict.fromkeys(("gemma3_text", "t5gemma2_decoder", "t5gemma2_text"), _nth(6, "sliding")),
    **dict.fromkeys(LAST_IS_FULL, _nth(6, "sliding", last=True)),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _nth(4, "linear")),
    **dict.fromkeys(("cohere2", "olmo3", "dory"), _nth(4, "sliding")),
    **dict.fromkeys(("gemma3n_text", "kolibri1"), _nth(5, "sliding")),
    **dict.fromkeys(
        ("qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text",
         "qwen2_5_omni_talker", "deepseek_ocr2_encoder", "dots1"), _from_depth,
    ),
    **dict.fromkeys(
        ("cwm", "granite_swa", "granitemoe_swa"),
        _where(lambda i, n: "sliding" if i % 4 else "full"),
    ),
    **dict.fromkeys(
        ("muse_glimmer_text", "muse_spark_text"),
        _where(lambda i, n: "sliding" if (n - 1 - i) % 4 else "full"),
    ),
    **dict.fromkeys(("inkling_text", "inkling2_text", "inkling2_loop_text"),
                    _nth(6, "hybrid_sliding", "hybrid")),
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text"),
        _cycle("indexed"),
    ),
    **dict.fromkeys(("laguna", "mellum", "cohere_compass_text", "step3p5"), _cycle("full")),
    "beam": _nth(6, "sliding", last=True),
    "olmo_hybrid": _nth(4, "linear"),
    "glm5_next_text": _nth(4, "linear", "indexed"),
    "qwen4_exp_text": _nth(4, "linear", "indexed"),
    "kimi_linear": _where(lambda i, n: "full" if i and i % 4 == 0 else "linear"),
    "minimax": _where(lambda i, n: "linear" if i % 2 else "full"),
    "modernbert-decoder": _where(lambda i, n: "sliding" if i % 3 else "full"),
    "mimo_v2_flash": _where(lambda i, n: "full" if i == 0 or not (i + 1) % 6 else "sliding"),
    "flint": _where(
        lambda i, n: "full" if i < 2 or i % 4 == 1 or i == n - 1 else "sliding"
    ),
    "dots3_note_text": _dots3,
    "lfm3": _where(
        lambda i, n: "full" if i % 4 == 2 else "sliding" if i and i % 4 == 0 else "conv"
    ),
    "ministral": _everywhere,
    "zaya": _cycle("hybrid"),
    "xlnet": _where(lambda i, n: "sliding"),
    "minimax_m3_vl_text": _cycle("full"),
    "unlimited_ocr_text": _cycle("full"),
    "lara_mini": _cycle("linear", "sliding", "linear", "full", "sliding"),
    "granitemoehybrid": _cycle("linear"),
    "mamba": _cycle("linear"), "mamba2": _cycle("linear"), "falcon_mamba": _cycle("linear"),
    "rwkv": _cycle("linear"), "rwkv5": _cycle("linear"), "rwkv6": _cycle("linear"),
    "rwkv7": _cycle("linear"), "xlstm": _cycle("linear"),
    "falcon_h1": _cycle("parallel"),
    "lfm2": _cycle("full"),
    "qwen2_moe": _qwen2_moe,
    "llama4_text": _chunked,
    "smollm3": _no_rope_slides,
    "mllama_text_model": _no_rule,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "deepseek_v4": _compressed,
}  # fmt: skip


def _class_rule(reader: Reader, n_layers: int) -> Kinds | None:
    rule = CLASS_RULES.get(reader.model_type)
    if rule is None:
        if "layer_types" in reader.derived:
            raise reader.missing("layer_types")
        return None
    kinds = rule(reader, n_layers)
    if kinds is not None and (len(set(kinds)) > 1 or "layer_types" in reader.derived):
        counts = ", ".join(_counted(kinds))
        reader.note("layer_types", counts, f"rule of the class of {reader.model_type}")
    return kinds


def _counted(kinds: Sequence[str]) -> Iterator[str]:
    for kind in sorted(set(kinds)):
        yield f"{kind} x {kinds.count(kind)}"
