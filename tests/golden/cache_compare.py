"""Bytes by layer and kind: those of a cache object's tensors, and those that the planner says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdover.codecs.base import uniform
from holdover.spec.memory import Kind, MemorySpec, layout_of
from holdover.spec.residency import Chunk, Window, live_tokens

from .cache_walk import tensors_in

Bytes = dict[tuple[int, str], int]
"""(layer, kind) -> bytes; a tensor of no known kind is under its own path, and so never equal."""

_KINDS = (
    (re.compile(r"cross_attention_cache\.layers\[\d+\]\.(keys|values)$"), Kind.CROSS),
    (re.compile(r"layers\[\d+\]\.(prefill_)?(keys|values)$"), Kind.ATTENTION),
    (re.compile(r"\.(conv_states|recurrent_states)\[\d+\]$"), Kind.STATE),
    (
        re.compile(
            r"\.(indexer_keys|idx_keys|indexer_position_ids)$|\.compressed_kv\['indexer'\]$"
        ),
        Kind.INDEXER,
    ),
    (re.compile(r"\.compressed_kv\['compressor'\]$"), Kind.ATTENTION),
    (re.compile(r"\.(buffer|overlap)_(kv|gate)\['\w+'\]$"), Kind.STATE),
    (re.compile(r"\.linear_cache\[\d+\]$|\.rnn_state\[\d+\]\[\d\]$"), Kind.STATE),
    (re.compile(r"^\[\d+\]$|\.states_cache\[\d+\]$"), Kind.ATTENTION),
)
_LAYER = re.compile(r"(?:layers|linear_cache|rnn_state|states_cache|^)\[(\d+)\]")
_BOOKKEEPING = re.compile(r"\._sliding_window_tensor$|\.cumulative_length$|\.seqlen_offset$")


def cached_bytes(cache: Any, cross_layers: Collection[int] = ()) -> Bytes:
    """Of all tensors in `cache`; what is in `cross_layers` is of an image, not of text."""
    found: Counter[tuple[int, str]] = Counter()
    if isinstance(cache, list):  # RWKV: five tensors, the last dimension of each being layers
        for state in cache:
            for layer in range(state.shape[-1]):
                found[layer, str(Kind.STATE)] += state[..., layer].numel() * state.element_size()
        return dict(found)
    for path, tensor in tensors_in(cache):
        if not _BOOKKEEPING.search(path):
            layer, kind = _place(path)
            kind = str(Kind.CROSS) if layer in cross_layers else kind
            found[layer, kind] += tensor.numel() * tensor.element_size()
    return _ranked(found)


def _ranked(found: Mapping[tuple[int, str], int]) -> Bytes:
    """With layers numbered in order, so that those which store nothing may be counted or not."""
    order = {layer: i for i, layer in enumerate(sorted({layer for layer, _ in found}))}
    return {(order[layer], kind): n for (layer, kind), n in found.items() if n}


def _place(path: str) -> tuple[int, str]:
    numbers = _LAYER.findall(path)
    kind = next((str(kind) for rule, kind in _KINDS if rule.search(path)), path)
    return int(numbers[0]) if numbers else -1, kind


def planned_bytes(memories: Iterable[MemorySpec], n_tokens: int) -> Bytes:
    """What is stored after `n_tokens` with nothing quantised and everything in fp32.

    A full window or chunk counts one row less than the planner's: between two steps the next
    token's own row is not there yet, and that is when a cache is looked at.
    """
    found: Counter[tuple[int, str]] = Counter()
    for memory in memories:
        rows = memory.rows(n_tokens)
        if memory.kind is Kind.STATE and isinstance(memory.residency, Chunk):
            rows = live_tokens(memory.residency, n_tokens)
        elif rows == _window_tokens(memory):
            rows -= 1
        layout = layout_of(memory, uniform("fp32"))
        each, rest = divmod(layout.logical_bytes(rows), len(memory.layers))
        assert not rest, "layers of one group store alike"
        for layer in memory.layers:
            found[layer, str(memory.kind)] += each
    return _ranked(found)


def _window_tokens(memory: MemorySpec) -> int | None:
    match memory.residency:
        case Window(window_tokens=n) | Chunk(chunk_tokens=n):
            return n
    return None
