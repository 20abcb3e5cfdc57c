"""Which matrices a module's published name is of: names differ between models, places do not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdover.geometry.sizing.weights.base import Place, Role

_LAYER = re.compile(r"(?:layers|blocks|h)\.(\d+)(?=[.*]|$)")
_NOTHING = re.compile(r"norm|bias|rotary|indexer|shared_expert_gate|router|\.gate\b|^gate$")
_MTP = re.compile(r"(model\.)?mtp\b")
_ROLES = (
    (Role.TOWER, re.compile(r"vision|visual|multi_modal|mm_proj|patch_merge|audio|image")),
    (Role.HEAD, re.compile(r"lm_head|^head\b|output_layer")),
    (Role.EMBEDDING, re.compile(r"embed|wte")),
    (Role.SHARED, re.compile(r"shared_expert")),
    (Role.EXPERTS, re.compile(r"experts")),
    (Role.DENSE, re.compile(r"mlp|ffn|feed_forward|block_sparse_moe|up_proj")),
    (Role.MIXER, re.compile(r"attn|attention|mixer|mamba|temporal|in_proj|\bconv\b")),
)
# The matrices by whose names a place is taken to be named; the rest of it is small or goes along.
_MAIN = re.compile(
    r"(attn|attention|mixer|mamba|mlp|ffn|feed_forward|block_sparse_moe|experts?|conv|\d+|head|"
    r"\*|q_proj|q_b_proj|qkv_proj|query_key_value|c_attn|wqkv|in_proj\w*|up_proj|gate_up_proj|w1|"
    r"fc1|lm_head|embed\w*)$"
)
_OF_LAYER = re.compile(r"(layers|blocks|h)\.(\d+|\*)\.?\*?$")
_FEED_FORWARD = re.compile(r"(mlp|ffn|feed_forward|block_sparse_moe)\.?$")


def place_of(name: str) -> Place | None:
    """Where a module stands; None of a norm, a router and the like."""
    bare = name.removeprefix("re:").replace("\\.", ".").replace(".*", "*").rstrip("*$")
    if _MTP.match(bare):
        return None
    layer = _LAYER.search(bare)
    index = None if layer is None else int(layer[1])
    if _OF_LAYER.search(bare + "."[: bool(layer and layer.end() == len(bare))]):
        return index, None
    if _NOTHING.search(bare) or not _MAIN.search(bare.rstrip(".")):
        return None
    role = next((role for role, pattern in _ROLES if pattern.search(bare)), None)
    return None if role is None else (index, role)


def places_of(name: str, dense_beside_experts: bool) -> Iterator[Place]:
    """All places that a name in a list of exceptions stands for.

    A whole feed-forward module is the dense one or the experts, except where a layer has both.
    """
    place = place_of(name)
    if place is None:
        return
    yield place
    whole = _FEED_FORWARD.search(name.rstrip("*$"))
    if place[1] is Role.DENSE and whole and not dense_beside_experts:
        yield from ((place[0], role) for role in (Role.EXPERTS, Role.SHARED))
