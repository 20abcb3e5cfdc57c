"""Windows through the cache that serves, which lets go of what no query can see: the model's own
against transformers, imposed ones against attention that is recomputed for each query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

from holdover.cache.arena import HostArena
from holdover.cache.manager import CacheManager
from holdover.codecs.base import kv_choice
from holdover.engine.planning import centre_layout
from holdover.geometry.base import Geometry, read_geometry
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.kernels._selection import select_backend
from holdover.kernels.native.availability import extension
from holdover.models._blueprint import Blueprint, refusal
from holdover.models._centring import find_centres
from holdover.models._native import load_native
from holdover.models.base import Model, load_model
from holdover.quality.forced import ForcedCache
from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.weights import open_checkpoint

from .conftest import VARIANTS, hf_config

BLOCK_TOKENS = 4
CONTEXT_TOKENS = 400  # more than the tiny models were made for
TOLERANCE = {"fp32": 1e-4, "int8": 0.08}  # of the largest logit


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> str:
    """ "native": on native kernels; what the native decoder does not compute, torch does."""
    if request.param == "native" and extension() is None:
        pytest.skip("nothing was compiled")
    return str(request.param)


def load(folder: Any, geometry: Geometry, decoder: str, limits: Limits) -> Model:
    checkpoint = open_checkpoint(folder)
    if decoder == "torch" or refusal(geometry) is not None:
        return load_model(checkpoint, geometry, DType.FP32)
    blueprint = Blueprint.of(extension(), geometry, "fp32")  # type: ignore[arg-type]
    return load_native(checkpoint, blueprint, DType.FP32, limits)


def cache_of(
    folder: Any, geometry: Geometry, decoder: str, step_tokens: int = 64, codec: str = "fp32"
) -> ForcedCache:
    """With room for one sequence: what it would need beyond its windows is not there."""
    limits = Limits(1, step_tokens, CONTEXT_TOKENS, 1)
    spec = CacheSpec.of(geometry.layers, BLOCK_TOKENS)
    layout = CacheLayout.of(spec, kv_choice(codec))
    kernels = select_backend("native" if decoder == "native" else "reference", layout).module
    n_sectors = layout.sectors_for(layout.peak_blocks(CONTEXT_TOKENS, step_tokens))
    arena = HostArena(n_sectors * layout.sector_bytes)
    arena.bytes.fill_(0xFF)
    workspace_bytes = kernels.workspace_bytes(layout, limits, geometry.query_heads)
    workspace = torch.zeros(workspace_bytes, dtype=torch.uint8)
    model = load(folder, geometry, decoder, replace(limits, max_sequences=step_tokens))
    shapes = centre_layout(layout, geometry, limits)
    centres = find_centres(model, kernels, shapes, spec, limits, range(60))
    backend = kernels.bind(arena.bytes, layout, limits, workspace, centres)
    return ForcedCache(model, backend, CacheManager(layout, arena), step_tokens)


def logits_of(cache: ForcedCache, tokens: Sequence[int], cuts: Sequence[int]) -> Tensor:
    """Of every token, computed in steps that end at `cuts` and, after the last, one by one."""
    sequence, found = cache.open(tokens), []
    ends = [
        *(c for c in cuts if c < len(tokens)),
        *range(max(cuts, default=0) + 1, len(tokens)),
        len(tokens),
    ]
    for stop in dict.fromkeys(ends):
        part = tokens[sequence.n_tokens : stop]
        found.append(cache.feed([(sequence, part)], len(part), len(tokens)).clone())
        cache.manager.check()
    cache.close(sequence)
    return torch.cat(found)


def text(n_tokens: int) -> list[int]:
    ids: list[int] = torch.randint(
        3, 90, (n_tokens,), generator=torch.Generator().manual_seed(3)
    ).tolist()
    return ids


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("window", [7, 8, 9])
@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "Gemma3Text", "GptOss"])
def test_own_windows_at_their_edges(
    family: str, window: int, decoder: str, saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks have 4 tokens: the window ends before, at and after the end of one."""
    changes: dict[str, Any] = {"sliding_window": window, "head_dim": 8}
    if family == "Qwen2":
        changes |= {"use_sliding_window": True, "max_window_layers": 1}
    if family == "Gemma3Text":
        changes |= {"query_pre_attn_scalar": 24, "sliding_window_pattern": 2}
    if family == "GptOss":
        changes |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    name = f"{family}_{window}"
    monkeypatch.setitem(VARIANTS, name, (family, changes))
    folder, hf = saved(name)
    geometry = read_geometry(open_checkpoint(folder).config)
    tokens = text(3 * window + 2)
    with torch.no_grad():
        expected = hf(input_ids=torch.tensor([tokens])).logits[0]
    edges = [window - 1, window, window + 1]
    for cuts in (edges, [4, 8, 12], [len(tokens)], [3, 2 * window], []):
        cache = cache_of(folder, geometry, decoder)
        assert difference(logits_of(cache, tokens, cuts), expected) < TOLERANCE["fp32"], cuts


@torch.no_grad()
def streamed(hf: Any, tokens: Sequence[int], window: int, sinks: int) -> Tensor:
    """Logits with keys turned anew for each query: to their places among what it keeps.

    Layers with a window of their own keep it; learned sinks are one more column of scores.
    """
    hidden = hf.model.embed_tokens(torch.tensor(tokens))
    positions = range(len(tokens))
    oss = hf.config.model_type == "gpt_oss"
    apply_rotary_pos_emb = (modeling_gpt_oss if oss else modeling_llama).apply_rotary_pos_emb
    for layer in hf.model.layers:
        attention, x = layer.self_attn, layer.input_layernorm(hidden)
        own = getattr(attention, "sliding_window", None)
        near, first = (own, 0) if own else (window, sinks)
        kept = [[j for j in range(p + 1) if j < first or p - j < near] for p in positions]
        shape = (len(tokens), -1, attention.head_dim)
        q, k, v = (
            getattr(attention, f"{name}_proj")(x).view(shape).transpose(0, 1) for name in "qkv"
        )
        rows = []
        for p, seen in enumerate(kept):
            places = torch.arange(len(seen))[None]
            cos, sin = hf.model.rotary_emb(x, places)
            queries, keys = q[:, p : p + 1], k[:, seen]
            keys = apply_rotary_pos_emb(keys[None], keys[None], cos, sin)[0][0]
            last = cos[:, -1:], sin[:, -1:]
            queries = apply_rotary_pos_emb(queries[None], queries[None], *last)[0][0]
            keys, values = (
                part.repeat_interleave(len(q) // len(k), 0) for part in (keys, v[:, seen])
            )
            scores = queries @ keys.transpose(1, 2) * attention.scaling
            if oss:
                scores = torch.cat((scores, attention.sinks.view(-1, 1, 1)), -1)
            weights = scores.softmax(-1)[..., : len(seen)]
            rows.append((weights @ values)[:, 0].flatten())
        hidden = hidden + attention.o_proj(torch.stack(rows))
        added = layer.mlp(layer.post_attention_layernorm(hidden)[None])
        hidden = hidden + (added[0] if oss else added)[0]
    logits: Tensor = hf.lm_head(hf.model.norm(hidden))
    return logits


@pytest.mark.parametrize(
    ("window", "sinks", "codec", "like"),
    [
        (9, 3, "fp32", "llama3_gqa"), (8, 4, "fp32", "llama3_gqa"), (5, 0, "fp32", "llama3_gqa"),
        (1, 2, "fp32", "llama3_gqa"), (6, 11, "fp32", "llama3_gqa"), (9, 3, "int8", "llama3_gqa"),
        (9, 3, "fp32", "gpt_oss"), (5, 0, "fp32", "gpt_oss"),
    ],
)  # fmt: skip
def test_an_imposed_window_is_that_of_streaming_llm(
    window: int,
    sinks: int,
    codec: str,
    like: str,
    decoder: str,
    saved: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learned sinks beside it: a query keeps them, whatever tokens it keeps."""
    kind, changes = VARIANTS[like]
    monkeypatch.setitem(VARIANTS, f"{like}_wide", (kind, changes | {"head_dim": 32}))
    folder, hf = saved(f"{like}_wide")
    geometry = with_window(
        read_geometry(open_checkpoint(folder).config), ImposedWindow(window, sinks)
    )
    tokens = text(70)
    expected = streamed(hf, tokens, window, sinks)
    with torch.no_grad():
        full = hf(input_ids=torch.tensor([tokens])).logits[0]
    n_whole = window + sinks  # nothing is forgotten so far
    assert difference(expected[:n_whole], full[:n_whole]) < 1e-5
    assert difference(expected, full) > 0.1
    for cuts in ([30, 31], [], [window, n_whole, n_whole + 1, 64]):
        cache = cache_of(folder, geometry, decoder, codec=codec)
        assert difference(logits_of(cache, tokens, cuts), expected) < TOLERANCE[codec], cuts


def test_it_goes_on_beyond_the_model_s_context(decoder: str, saved: Any) -> None:
    """Of 256 tokens. The blocks are those of the window, the sinks and the step."""
    folder, hf = saved("qwen2_bias")
    assert hf_config("qwen2_bias").max_position_embeddings == 256
    geometry = with_window(read_geometry(open_checkpoint(folder).config), ImposedWindow(20, 2))
    tokens = text(CONTEXT_TOKENS)
    cache = cache_of(folder, geometry, decoder, step_tokens=10)
    found = logits_of(cache, tokens, range(10, CONTEXT_TOKENS, 10))
    assert difference(found, streamed(hf, tokens, 20, 2)) < TOLERANCE["fp32"]


def test_layers_with_a_window_of_their_own_keep_it(saved: Any) -> None:
    geometry = read_geometry(open_checkpoint(saved("gemma3_text")[0]).config)
    imposed = with_window(geometry, ImposedWindow(5, 2))
    assert [layer.residency for layer in imposed.layers[:2]] == [
        layer.residency for layer in geometry.layers[:2]
    ]
    assert imposed.sink_turns == (None, None, (0, 6))
    assert replace(imposed, layers=geometry.layers) == geometry
