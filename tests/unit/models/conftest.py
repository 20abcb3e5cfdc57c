"""Tiny random models of every variant, and two caches to step them over.

`ContiguousCache` is an independent oracle in the plainest torch; `PagedCache` is the real
backend over a real arena.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs.base import kv_choice
from holdover.engine.planning import centre_layout
from holdover.geometry.base import Geometry
from holdover.kernels._centre import Centres
from holdover.kernels._selection import AUTO, asked_backend, select_backend
from holdover.kernels.base import AttentionBatch, AttentionStep
from holdover.models._centring import find_centres
from holdover.models.base import Model
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.units import ceil_div

PLANES = ("k", "v", "latent", "rope")
Turn = Sequence[tuple[int, int]]
"""One step: (sequence, tokens to compute)."""


class Cache(Protocol):
    def begin(self, turn: Turn, lengths: Mapping[int, int]) -> AttentionStep: ...


@dataclass
class ContiguousStep:
    """Keys and values of each sequence as one tensor per layer, scores as one full matrix.

    Computed in `dtype`: fp32, or the model's own to round where transformers' eager attention does.
    """

    geometry: Geometry
    turn: Turn
    rows: dict[tuple[int, int, str], Tensor]
    dtype: torch.dtype
    calls: list[tuple[float, float]] = field(default_factory=list)

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        for plane, flat in rows.items():
            for (sequence, _), part in zip(self.turn, self._split(flat), strict=True):
                key = (layer, sequence, plane)
                stored = [self.rows[key]] if key in self.rows else []
                self.rows[key] = torch.cat([*stored, part.to(self.dtype)])

    def attend(
        self, layer: int, query: Tensor, scale: float, softcap: float = 0.0, **more: Any
    ) -> Tensor:
        assert more.get("sink_query") is None
        self.calls.append((scale, softcap))
        return torch.cat(
            [
                self._attend_one(layer, sequence, part, scale, softcap, more.get("sink_logits"))
                for (sequence, _), part in zip(self.turn, self._split(query), strict=True)
            ]
        )

    def _split(self, flat: Tensor) -> list[Tensor]:
        return list(torch.split(flat, [n for _, n in self.turn]))

    def _attend_one(
        self, layer: int, sequence: int, query: Tensor, scale: float, softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        shared = self.geometry.query_heads // self.geometry.kv_heads
        stored = {
            p: self.rows[layer, sequence, p] for p in PLANES if (layer, sequence, p) in self.rows
        }
        if "latent" in stored:
            stored["k"] = torch.cat((stored["latent"], stored["rope"]), -1)
            stored["v"] = stored["latent"]
        keys, values = (stored[p].repeat_interleave(shared, 1).transpose(0, 1) for p in "kv")
        scores = query.to(self.dtype).transpose(0, 1) @ keys.transpose(1, 2) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        n_keys, n_queries = keys.shape[1], len(query)
        residency = self.geometry.layers[layer].residency
        for row in range(n_queries):
            position = n_keys - n_queries + row
            scores[:, row, : residency.first_visible(position)] = -torch.inf
            scores[:, row, position + 1 :] = -torch.inf
        if sinks is not None:  # one more column, whose value is nothing
            scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, n_queries, 1)), -1)
        weights = scores.softmax(-1, torch.float32)[..., :n_keys].to(self.dtype)
        return (weights @ values).transpose(0, 1).to(query.dtype)


@dataclass
class ContiguousCache:
    geometry: Geometry
    dtype: torch.dtype = torch.float32
    rows: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)
    last: ContiguousStep | None = None

    def begin(self, turn: Turn, lengths: Mapping[int, int]) -> AttentionStep:
        self.last = ContiguousStep(self.geometry, turn, self.rows, self.dtype)
        return self.last


class PagedCache:
    """A group owns every n-th sector of an arena and takes its blocks one by one, never back.

    With a model, keys have centres where their codec asks for them.
    """

    def __init__(
        self,
        geometry: Geometry,
        codec: str = "fp32",
        block_tokens: int = 4,
        capacity_tokens: int = 200,
        backend: str | None = None,
        model: Model | None = None,
    ) -> None:
        limits = Limits(16, 4096, 4096, torch.get_num_threads())
        spec = CacheSpec.of(geometry.layers, block_tokens)
        self.layout = CacheLayout.of(spec, kv_choice(codec))
        n_blocks = ceil_div(capacity_tokens, block_tokens)
        n_sectors = len(spec.groups) * ceil_div(n_blocks, min(self.layout.blocks_per_sector))
        # Bytes that are no number: a read of a row that was never written shows.
        arena = torch.full((n_sectors * self.layout.sector_bytes,), 0xFF, dtype=torch.uint8)
        kernels = self.kernels = select_backend(backend or asked_backend(AUTO), self.layout).module
        workspace_bytes = kernels.workspace_bytes(self.layout, limits, geometry.query_heads)
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8)
        centres: Centres = {}
        if model is not None:
            shapes = centre_layout(self.layout, geometry, limits)
            centres = find_centres(model, kernels, shapes, spec, limits, range(60))
        self.backend = kernels.bind(arena, self.layout, limits, workspace, centres)
        self.tables: list[dict[int, list[int]]] = [{} for _ in spec.groups]
        self.taken = [0 for _ in spec.groups]

    def begin(self, turn: Turn, lengths: Mapping[int, int]) -> AttentionStep:
        block_tokens = self.layout.spec.block_tokens
        context = [lengths[sequence] + n for sequence, n in turn]
        tables = []
        for group, table in enumerate(self.tables):
            flat = np.full((len(turn), ceil_div(max(context), block_tokens)), -1, np.int32)
            for row, (sequence, _) in enumerate(turn):
                blocks = table.setdefault(sequence, [])
                while len(blocks) * block_tokens < context[row]:
                    blocks.append(self._take(group))
                flat[row, : len(blocks)] = blocks
            tables.append(flat)
        starts = np.cumsum([0, *(n for _, n in turn)], dtype=np.int32)
        return self.backend.begin(
            AttentionBatch(starts, np.array(context, np.int32), tuple(tables))
        )

    def _take(self, group: int) -> int:
        per = self.layout.blocks_per_sector[group]
        sector, slot = divmod(self.taken[group], per)
        self.taken[group] += 1
        return (sector * len(self.tables) + group) * per + slot


def step_through(
    model: Model, cache: Cache, prompts: Sequence[Tensor], turns: Sequence[Turn]
) -> list[Tensor]:
    """Run the turns over a flat batch; per sequence the logits of every one of its tokens."""
    lengths = dict.fromkeys(range(len(prompts)), 0)
    seen: list[list[Tensor]] = [[] for _ in prompts]
    for turn in turns:
        tokens = torch.cat([prompts[s][lengths[s] : lengths[s] + n] for s, n in turn])
        positions = torch.cat([torch.arange(lengths[s], lengths[s] + n) for s, n in turn])
        step = cache.begin(turn, lengths)
        rows = model.forward(tokens, positions, step, torch.arange(len(tokens)))
        for (sequence, n), part in zip(turn, rows.split([n for _, n in turn]), strict=True):
            seen[sequence].append(part.clone())
            lengths[sequence] += n
    return [torch.cat(parts) for parts in seen]


TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LOCAL = {"rope_type": "default", "rope_theta": 100.0}
_GLOBAL = {"rope_type": "default", "rope_theta": 5000.0}
_GEMMA = {"head_dim": 10, "query_pre_attn_scalar": 24, "sliding_window": 7, "hidden_size": 42}
_LATENT = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_GPT_OSS = {
    "head_dim": 14,
    "sliding_window": 7,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 20,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2_mha": ("Llama", {"num_key_value_heads": 6}),
    "llama3_gqa": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_head_dim": ("Llama", {"head_dim": 14}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    ),
    "llama_gelu": ("Llama", {"hidden_act": "gelu"}),
    "mistral_window": ("Mistral", {"sliding_window": 9}),
    "mistral_full": ("Mistral", {"sliding_window": None}),
    "qwen2_bias": ("Qwen2", {}),
    "qwen2_mixture": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2_yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3_qk_norm": ("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "gemma3_text": (
        "Gemma3Text",
        _GEMMA
        | {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"sliding_attention": _LOCAL, "full_attention": _GLOBAL},
        },
    ),
    "gemma3_pattern": (
        "Gemma3Text",
        _GEMMA
        | {
            "num_hidden_layers": 7,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "sliding_attention": _LOCAL,
                "full_attention": _GLOBAL | {"rope_type": "linear", "factor": 8.0},
            },
        },
    ),
    "gemma3_wrapper": ("Gemma3", _GEMMA | {"sliding_window": 11}),
    "deepseek_v2": (
        "DeepseekV2",
        _LATENT
        | {"q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {
            "routed_scaling_factor": 4.0,
            "rope_parameters": _YARN | {"mscale": 1.2, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek_v2_lite": (
        "DeepseekV2",
        _LATENT
        | {"q_lora_rank": None, "rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "deepseek_v2_biases": ("DeepseekV2", _LATENT | {"q_lora_rank": 24, "attention_bias": True}),
    "deepseek_v3": (
        "DeepseekV3",
        _LATENT | {"q_lora_rank": 24, "n_group": 4, "topk_group": 2, "rope_parameters": _YARN},
    ),
    "deepseek_v3_halves": (
        "DeepseekV3",
        _LATENT
        | {"q_lora_rank": None, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}
        | {"rope_interleave": False, "norm_topk_prob": False, "n_shared_experts": 1},
    ),
    "gpt_oss": (
        "GptOss",
        _GPT_OSS | {"num_hidden_layers": 4, "rope_parameters": _YARN | {"truncate": False}},
    ),
    "gpt_oss_plain": (
        "GptOss",
        _GPT_OSS
        | {"attention_bias": False, "swiglu_limit": 0.9, "rope_parameters": _LOCAL}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
}


def hf_config(variant: str) -> Any:
    import transformers

    name, changes = VARIANTS[variant]
    text = TINY | changes
    if name == "Gemma3":
        vision = {
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 28,
            "patch_size": 14,
        }
        # Image markers outside the prompts' vocabulary.
        ids = {"image_token_index": 96, "boi_token_index": 95, "eoi_token_index": 94}
        return transformers.Gemma3Config(text_config=text, vision_config=vision, **ids)
    return getattr(transformers, f"{name}Config")(**text)


def hf_class(variant: str) -> Any:
    import transformers

    wrapper = VARIANTS[variant][0] == "Gemma3"
    name = "AutoModelForImageTextToText" if wrapper else "AutoModelForCausalLM"
    return getattr(transformers, name)


def hf_model(variant: str) -> Any:
    """A model whose every weight matters: norms away from one, biases away from zero."""
    config = hf_config(variant)
    torch.manual_seed(0)
    model = hf_class(variant).from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                centre = float(name.endswith("norm.weight") and "emma3" not in config.model_type)
                weight.normal_(centre, 0.3)
            elif "_proj" in name:
                weight.normal_(0, 1.5 * weight.shape[1] ** -0.5)
            else:
                weight.normal_(0, 0.5)
            weight.copy_(weight.bfloat16())  # so that bf16 and fp32 load the same values
    return model.eval()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """variant -> (folder, the transformers model), made on first use."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(variant: str) -> tuple[Path, Any]:
        if variant not in made:
            folder = tmp_path_factory.mktemp(variant)
            model = hf_model(variant)
            model.save_pretrained(folder)
            assert json.loads((folder / "config.json").read_text())["model_type"]
            made[variant] = (folder, model)
        return made[variant]

    return get


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""


@pytest.fixture(params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return request.param
