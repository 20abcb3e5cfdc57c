"""DeepSeek-V4: a window of latents, and one latent for every `ratio` tokens before it.

The latent is key and value at once, rotary part included: `head_dim` elements. Layers of the small
ratio choose among compressed latents by an indexer, which keeps one key for each of them.

Tokens that do not fill a window of `ratio` yet wait in some form until they do. That is not
counted, but listed: three running sums an element would do, transformers keeps a value and a gate
of every waiting token (V4-Flash: up to 5.7 MB a conversation in bf16, less than 2.5 % of its
memory at 32,768 tokens), and other engines yet other rows.
"""

from __future__ import annotations

from holdover.geometry.sizing.layer_lists import listed
from holdover.geometry.sizing.mechanisms.base import Layer, index_keys
from holdover.geometry.sizing.reader import Reader
from holdover.spec.layers import Plane
from holdover.spec.memory import Kind, MemorySpec, Sharding
from holdover.spec.residency import Full, Window

KINDS = frozenset({"compressed", "compressed_sparse", "heavily_compressed", "sliding"})
RANK = 20

_INDEXED_RATIO = 4  # the ratio whose layers have an indexer
_BY_KIND = {"compressed_sparse": ("compressed_sparse_attention", 4),
            "heavily_compressed": ("heavily_compressed_attention", 128)}  # fmt: skip


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.knows("compress_ratios") or reader.model_type == "deepseek_v4"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    heads = reader.integer("num_key_value_heads")
    if heads != 1:
        raise reader.wrong("num_key_value_heads", f"{heads}; compressed latents have one head")
    planes = (Plane("latent", 1, reader.integer("head_dim")),)
    n_tokens = reader.integer("sliding_window")
    window = MemorySpec(
        Kind.ATTENTION, f"window {n_tokens}", planes, Window(n_tokens), (layer.index,),
        sharding=Sharding.REPLICATED,
    )  # fmt: skip
    ratio = ratio_of(reader, layer)
    if ratio == 0:
        return (window,)
    reader.note(
        f"window of {ratio} tokens", "not counted",
        f"up to {ratio - 1} tokens wait to be compressed, in a form that each engine chooses",
    )  # fmt: skip
    latents = MemorySpec(
        Kind.ATTENTION, f"compressed 1/{ratio}", planes, Full(), (layer.index,), ratio,
        sharding=Sharding.REPLICATED,
    )  # fmt: skip
    if ratio != _INDEXED_RATIO:
        return window, latents
    dim = reader.integer("index_head_dim")
    return window, latents, index_keys(f"index 1/{ratio}", layer, dim, tokens_per_row=ratio)


def ratio_of(reader: Reader, layer: Layer) -> int:
    """Tokens per compressed latent; 0 where the layer has its window only."""
    if reader.get("compress_ratios") is not None:
        is_mtp = layer.index >= layer.n_layers
        count = layer.index + 1 if is_mtp else layer.n_layers
        ratios = listed(reader, "compress_ratios", count, strict=not is_mtp) or [0]
        ratio = reader.as_integer(ratios[layer.index], "compress_ratios", minimum=0)
        if ratio not in (0, 4, 128):
            raise reader.wrong("compress_ratios", f"{ratio} is none of 0, 4 and 128")
        return ratio
    if layer.kind not in _BY_KIND:
        return 0
    name, usual = _BY_KIND[layer.kind]
    rates = reader.part("compress_rates")
    stated = None if rates is None else rates.optional_integer(name)
    if stated is None:
        reader.note(f"compress_rates.{name}", usual, f"class default of {reader.model_type}")
    return stated or usual
