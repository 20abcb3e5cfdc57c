"""The bound on activations against what the allocator really hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from holdover.geometry.base import Geometry, expected_tensors, read_geometry
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.models.base import Model, load_model
from holdover.plan.activations import activation_bytes
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits
from holdover.weights.base import TensorInfo


@dataclass
class RandomCheckpoint:
    """A checkpoint without a file: this test is about sizes."""

    config: Mapping[str, Any]
    path: str = "random"

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        shapes = expected_tensors(read_geometry(self.config))
        return {name: TensorInfo(shape, "F16", 0, 0) for name, shape in shapes.items()}

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.tensors[name].shape).mul_(0.02).to(dtype)


@dataclass
class NullStep:
    """Attention that allocates its result and the fp32 copies a backend may make, nothing else."""

    value_dim: int

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        pass

    def attend(
        self, layer: int, query: Tensor, scale: float, softcap: float = 0.0, **more: Any
    ) -> Tensor:
        wide = torch.empty(query.shape, dtype=torch.float32).copy_(query)
        sinks = more.get("sink_query")
        second = None if sinks is None else sinks.float().clone()
        values = wide[..., : self.value_dim]
        result = torch.empty(values.shape, dtype=torch.float32).copy_(values)
        del second
        return query.new_empty(values.shape).copy_(result)


def measured_peak_bytes(model: Model, limits: Limits) -> int:
    """Highest sum of the CPU allocator's events over one forward, the step's inputs included."""
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        tokens = torch.zeros(limits.step_tokens, dtype=torch.int64)
        positions = torch.arange(limits.step_tokens)
        rows = torch.arange(limits.max_sequences)
        model.forward(tokens, positions, NullStep(model.geometry.layers[0].planes[0].dim), rows)
    results = profiler.profiler.kineto_results
    events = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    live = peak = 0
    for _, nbytes in sorted(events, key=lambda event: event[0]):
        live += nbytes
        peak = max(peak, live)
    assert live < peak / 2, "most of it is free again afterwards"
    return peak


COMMON = {
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
LATENT = {
    "num_attention_heads": 16,
    "q_lora_rank": 96,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 16,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
SHAPES: dict[str, tuple[dict[str, Any], Limits]] = {
    "mlp is widest": (
        {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536}
        | {"num_attention_heads": 9, "num_key_value_heads": 3},
        Limits(16, 512, 4096),
    ),
    "attention is widest": (
        {"model_type": "qwen3", "hidden_size": 256, "intermediate_size": 256}
        | {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64},
        Limits(16, 512, 4096),
    ),
    "logits are widest": (
        {"model_type": "llama", "hidden_size": 128, "intermediate_size": 256}
        | {"num_attention_heads": 4, "vocab_size": 32000},
        Limits(64, 64, 4096),
    ),
    "hidden is widest": (
        {"model_type": "gemma3_text", "hidden_size": 1024, "intermediate_size": 256}
        | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64},
        Limits(16, 512, 4096),
    ),
    "gemma": (
        {"model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048}
        | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256},
        Limits(16, 512, 4096),
    ),
    "absorbed queries are widest": (
        {"model_type": "deepseek_v2", "hidden_size": 256, "intermediate_size": 512} | LATENT,
        Limits(16, 300, 4096),
    ),
    "experts are widest": (
        {"model_type": "deepseek_v3", "hidden_size": 512, "intermediate_size": 512}
        | LATENT
        | {"num_attention_heads": 2, "kv_lora_rank": 64, "moe_intermediate_size": 1024},
        Limits(16, 300, 4096),
    ),
    "fused experts are widest": (
        {"model_type": "gpt_oss", "hidden_size": 256, "intermediate_size": 1024, "head_dim": 64}
        | {"num_attention_heads": 4, "num_key_value_heads": 1, "num_local_experts": 4}
        | {"num_experts_per_tok": 2, "sliding_window": 100},
        Limits(16, 300, 4096),
    ),
    "learned sinks": (
        {"model_type": "gpt_oss", "hidden_size": 256, "intermediate_size": 64, "head_dim": 64}
        | {"num_attention_heads": 16, "num_key_value_heads": 2, "num_local_experts": 8}
        | {"sliding_window": 100},
        Limits(16, 512, 4096),
    ),
    "biases": (
        {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024}
        | {"num_attention_heads": 8, "attention_bias": True, "mlp_bias": True},
        Limits(16, 300, 4096),
    ),
    "sinks": (
        {"model_type": "qwen3", "hidden_size": 256, "intermediate_size": 256}
        | {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64},
        Limits(16, 512, 4096),
    ),
}


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_bound(shape: str, dtype: DType) -> None:
    changes, limits = SHAPES[shape]
    config = COMMON | changes
    geometry: Geometry = read_geometry(config)
    if shape == "sinks":
        geometry = with_window(geometry, ImposedWindow(100, 4))
    model = load_model(RandomCheckpoint(config), geometry, dtype)  # type: ignore[arg-type]
    measured = measured_peak_bytes(model, limits)
    bound = activation_bytes(geometry, limits, dtype)
    assert measured <= bound <= 1.5 * measured
