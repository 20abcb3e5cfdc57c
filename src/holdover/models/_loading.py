"""From stored tensors to the matrices that are multiplied.

Each matrix is filled where it will stay, part by part, so the peak of loading is the model and one
part. What is loaded never shares memory with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from holdover.geometry.base import Geometry
from holdover.models._blocks import AttentionWeights, MlpWeights
from holdover.models.base import Family
from holdover.spec.dtypes import DType
from holdover.weights.base import Checkpoint

T = TypeVar("T")

_THREADS = 2  # layers in flight: hides the reading of one behind the decoding of another
_STORED_NAMES = {DType.FP32: "F32", DType.BF16: "BF16"}


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads the tensors of one checkpoint as torch multiplies them."""

    checkpoint: Checkpoint
    geometry: Geometry
    dtype: DType
    family: Family

    def norm(self, name: str) -> Tensor:
        if self.family.norms_from_one:
            return self.checkpoint.load(f"{name}.weight", torch.float32).add(1.0)
        if self.family.wide_norms:
            return self.wide(f"{name}.weight")
        return self.stacked([f"{name}.weight"])

    def layer_norm(self, layer: int, name: str | None) -> Tensor | None:
        return None if name is None else self.norm(f"model.layers.{layer}.{name}")

    def stacked(self, names: Sequence[str]) -> Tensor:
        """Some tensors under each other, in the model's dtype."""
        dtype: torch.dtype = getattr(torch, self.dtype.torch_name)
        if len(names) == 1 and self._is_converted(names[0]):
            return self.checkpoint.load(names[0], dtype)
        shapes = [self.checkpoint.tensors[name].shape for name in names]
        rows = sum(shape[0] for shape in shapes)
        whole = torch.empty((rows, *shapes[0][1:]), dtype=dtype)
        parts = torch.split(whole, [shape[0] for shape in shapes])
        for name, part in zip(names, parts, strict=True):
            part.copy_(self.checkpoint.load(name, dtype))
        return whole

    def turned(self, name: str, view: Callable[[Tensor], Tensor]) -> Tensor:
        """A tensor in the model's dtype, its elements in the order of a view of it."""
        seen = view(self.checkpoint.load(name, getattr(torch, self.dtype.torch_name)))
        return torch.empty(seen.shape, dtype=seen.dtype).copy_(seen)

    def wide(self, name: str) -> Tensor:
        """A tensor in fp32, whatever the model's dtype."""
        loaded = self.checkpoint.load(name, torch.float32)
        return loaded.clone() if self.checkpoint.tensors[name].dtype_name == "F32" else loaded

    def embedding(self) -> Tensor:
        return self.stacked(["model.embed_tokens.weight"])

    def head(self, embedding: Tensor) -> Tensor:
        return embedding if self.geometry.tied_embeddings else self.stacked(["lm_head.weight"])

    def attention(self, layer: int) -> AttentionWeights:
        prefix = f"model.layers.{layer}.self_attn"
        qkv = [f"{prefix}.{name}_proj" for name in "qkv"]
        output = [f"{prefix}.o_proj"]
        return AttentionWeights(
            norm=self.norm(f"model.layers.{layer}.input_layernorm"),
            qkv=self._weight(qkv),
            qkv_bias=self._bias(qkv, self.geometry.qkv_bias),
            qk_norm=self._qk_norm(prefix) if self.geometry.qk_norm else None,
            output=self._weight(output),
            output_bias=self._bias(output, self.geometry.output_bias),
            sinks=self.wide(f"{prefix}.sinks") if self.geometry.learned_sinks else None,
        )

    def mlp(self, layer: int) -> MlpWeights:
        prefix = f"model.layers.{layer}.mlp"
        gate_up = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        down = [f"{prefix}.down_proj"]
        return MlpWeights(
            norm=self.norm(f"model.layers.{layer}.{self.family.mlp_norm}"),
            gate_up=self._weight(gate_up),
            gate_up_bias=self._bias(gate_up, self.geometry.mlp_bias),
            down=self._weight(down),
            down_bias=self._bias(down, self.geometry.mlp_bias),
        )

    def layers(self, read: Callable[[int], T]) -> tuple[T, ...]:
        """`read` of every layer, a few at a time."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return tuple(pool.map(read, range(len(self.geometry.layers))))

    def _is_converted(self, name: str) -> bool:
        """Whether loading makes new memory; an unconverted tensor may be a view of the file."""
        return self.checkpoint.tensors[name].dtype_name != _STORED_NAMES[self.dtype]

    def _weight(self, names: Sequence[str]) -> Tensor:
        return self.stacked([f"{name}.weight" for name in names])

    def _bias(self, names: Sequence[str], wanted: bool) -> Tensor | None:
        return self.stacked([f"{name}.bias" for name in names]) if wanted else None

    def _qk_norm(self, prefix: str) -> Tensor:
        """Both weights spread over their heads, so that q and k are normed in one go."""
        g = self.geometry
        query = self.norm(f"{prefix}.q_norm").expand(g.query_heads, -1)
        key = self.norm(f"{prefix}.k_norm").expand(g.kv_heads, -1)
        return torch.cat((query, key))
