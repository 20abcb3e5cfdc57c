"""Which kind each layer is where the file says nothing: what the class of its type works out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdover.geometry.sizing.layer_lists import (
    Kinds,
    PatternReader,
    layer_numbers,
    listed,
    slides,
)
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.stated_patterns import LAST_IS_FULL


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
    "bamba": _cycle("linear"),
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


def class_rule(reader: Reader, n_layers: int) -> Kinds | None:
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
