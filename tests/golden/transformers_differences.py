"""Where transformers' cache differs from what a model has to remember, and by exactly how much.

Every entry rewrites what the planner says into what transformers stores, so that the walk compares
bytes here too. `NOT_WALKED` are architectures that no text cache can be taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec
from holdover.spec.residency import Chunk, Fixed

Rewrite = Callable[[Iterable[MemorySpec], Any], Iterator[MemorySpec]]
"""(what the planner says, the text config) -> what transformers stores"""


@dataclass(frozen=True, slots=True)
class Difference:
    reason: str
    stores: Rewrite


def _kernel_columns(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        if "convolution" in memory.label:
            planes = tuple(replace(p, dim=p.dim + 1) for p in memory.planes)
            memory = replace(memory, planes=planes)
        yield memory


def _nothing(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    yield from ()


def _unfinished_windows(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    """DeepSeek-V4: projections and gates of tokens that do not fill a compressed window yet.

    A layer of the small ratio has two series, and keeps the first of its last full window too.
    """
    memories = tuple(memories)
    yield from memories
    index_dim = {m.tokens_per_row: m.row_elements for m in memories if m.kind is Kind.INDEXER}
    for memory in memories:
        ratio = memory.tokens_per_row
        if ratio == 1 or memory.kind is not Kind.ATTENTION:
            continue
        n_series = 2 if ratio in index_dim else 1
        width = memory.row_elements + index_dim.get(ratio, 0)
        rows = ((Chunk(ratio), n_series), (Fixed(ratio), n_series - 1))
        for residency, n in rows:
            planes = (Plane("open", 1, n * width), Plane("gate", 1, n * width))
            if n:
                yield MemorySpec(Kind.STATE, "window", planes, residency, memory.layers)


def _one_row_more(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        yield memory
        yield replace(memory, residency=Fixed(1))


def _hidden_states(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        hidden = replace(memory, planes=(Plane("hidden", 1, config.hidden_size),))
        yield hidden
        yield replace(hidden, residency=Fixed(1))


def _qwen4(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    memories = tuple(memories)
    yield from _kernel_columns(memories, config)
    int64 = 2  # of fp32
    for memory in memories:
        if memory.label == "n-gram embedding filter":
            planes = (Plane("ids", 1, (config.ngram_size - 1) * int64),)
            yield replace(memory, planes=planes)
        if memory.kind is Kind.INDEXER:
            planes = (Plane("positions", 1, 3 * int64),)
            yield replace(memory, planes=planes, layers=memory.layers[:1])


def _gated_index(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in _kernel_columns(memories, config):
        if memory.kind is Kind.INDEXER:
            memory = replace(memory, planes=(Plane("index", 1, 2 * memory.row_elements + 1),))
        yield memory


def _prefixed(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    yield from (replace(memory, kind=Kind.ATTENTION) for memory in memories)


def _hidden_alone(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        yield replace(memory, planes=(Plane("hidden", 1, config.hidden_size),))


def _per_query_head(memories: Iterable[MemorySpec], config: Any) -> Iterator[MemorySpec]:
    for memory in memories:
        planes = tuple(replace(p, heads=config.num_attention_heads) for p in memory.planes)
        yield replace(memory, planes=planes)


COLUMN = Difference(
    "the convolution's cache keeps as many columns as its kernel is wide; the oldest is shifted "
    "out unread by the next token",
    _kernel_columns,
)
NO_CACHE = Difference("the class keeps no cache: it computes every token anew", _nothing)

DIFFERENCES: dict[str, Difference] = {
    **dict.fromkeys(
        (
            "bailing_hybrid",
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "granitemoehybrid",
            "inkling_text",
            "inkling2_text",
            "inkling2_loop_text",
            "inkling2",
            "inkling2_loop",
            "inkling_mm_model",
            "jamba",
            "kimi_linear",
            "lara_mini",
            "lfm2_moe",
            "lfm3",
            "lfm3_vl",
            "mamba",
            "mamba2",
            "minicpm_ocr",
            "minicpmv4_6",
            "minicpmv4_7",
            "nemo_speechlm",
            "nemotron_h",
            "nemotron_h_omni",
            "olmo_hybrid",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
            "zamba",
            "zamba2",
        ),
        COLUMN,
    ),
    "falcon+groups": Difference(
        "keys and values are repeated for every query head before they are cached",
        _per_query_head,
    ),
    "openai-gpt": NO_CACHE,
    **dict.fromkeys(
        ("qwen4_exp", "qwen4_exp_text"),
        Difference(
            f"{COLUMN.reason}; the last token ids and every token's three positions, in 64 bits, "
            "which are known from the text",
            _qwen4,
        ),
    ),
    "glm5_next": Difference(
        f"{COLUMN.reason}; a gate and a mask of every token stand beside its index key, which "
        "pooling a full group of tokens would end",
        _gated_index,
    ),
    "musicgen_melody": Difference(
        "the same bytes, but the encoder's rows stand before the text's, not in a cache of theirs",
        _prefixed,
    ),
    "reformer": Difference(
        "less: hidden states are kept, and keys and values computed from them anew", _hidden_alone
    ),
    "deepseek_v4": Difference(
        "every token's projections and gates are kept until they fill a compressed window, where "
        "running sums would do",
        _unfinished_windows,
    ),
    "xlm": Difference("a mask token is fed, and cached, with every step", _one_row_more),
    "xlnet": Difference(
        "less: hidden states are kept, and keys and values computed from them anew; a dummy token "
        "is fed with every step",
        _hidden_states,
    ),
}

NOT_WALKED: dict[str, str] = {
    "blt": "`generate` fails in this transformers: the config of its four models has no layers",
    "gemma4_assistant": "a draft head that reads its target's cache, and keeps none",
    "gemma4_unified_assistant": "a draft head that reads its target's cache, and keeps none",
    "idefics": "every step needs an image, and the class makes keys of it anew each time",
    "pi0": "a robot's policy: it generates actions, not text",
}
