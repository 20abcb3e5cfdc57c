"""Gemma 3: norms before and after each half of a layer, local and global rope, scaled embedding.

Norm weights are stored as their difference from one; the sum is held in fp32 as it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.geometry.base import Geometry
from holdover.kernels.base import AttentionStep
from holdover.models import _rope
from holdover.models._blocks import (
    AttentionWeights,
    MlpWeights,
    gated_mlp,
    logits,
    rms_norm,
    self_attention,
    storage_nbytes,
)
from holdover.models._loading import Loader
from holdover.spec.dtypes import DType
from holdover.weights.base import Checkpoint


@dataclass(frozen=True, slots=True)
class Layer:
    attention: AttentionWeights
    attention_post_norm: Tensor
    mlp: MlpWeights
    mlp_post_norm: Tensor


@dataclass(frozen=True, slots=True)
class Gemma3:
    """See `Model`. `frequencies` are per rope of the geometry."""

    geometry: Geometry
    dtype: DType
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    frequencies: tuple[Tensor, ...]

    @property
    def weights_nbytes(self) -> int:
        return storage_nbytes(self)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, logit_rows: Tensor
    ) -> Tensor:
        g = self.geometry
        hidden = F.embedding(token_ids, self.embedding)
        # The factor itself is rounded to the model's dtype, as it was in training.
        hidden *= torch.tensor(g.hidden_size**0.5, dtype=hidden.dtype)
        angles = [
            _rope.angles(rope, turns, positions, hidden.dtype)
            for rope, turns in zip(g.ropes, self.frequencies, strict=True)
        ]
        for index, layer in enumerate(self.layers):
            turn = angles[g.layer_ropes[index]]
            hidden += rms_norm(
                self_attention(hidden, layer.attention, turn, index, step, g),
                layer.attention_post_norm,
                g.norm_eps,
            )
            hidden += rms_norm(gated_mlp(hidden, layer.mlp, g), layer.mlp_post_norm, g.norm_eps)
        hidden = hidden.index_select(0, logit_rows)
        return logits(hidden, self.norm, self.head, g)


def load(checkpoint: Checkpoint, geometry: Geometry, dtype: DType) -> Gemma3:
    loader = Loader(checkpoint, geometry, dtype, _norm)

    def layer(index: int) -> Layer:
        prefix = f"model.layers.{index}"
        return Layer(
            attention=loader.attention(index),
            attention_post_norm=_norm(loader, f"{prefix}.post_attention_layernorm"),
            mlp=loader.mlp(index, "pre_feedforward_layernorm"),
            mlp_post_norm=_norm(loader, f"{prefix}.post_feedforward_layernorm"),
        )

    embedding = loader.embedding()
    return Gemma3(
        geometry=geometry,
        dtype=dtype,
        embedding=embedding,
        layers=loader.layers(layer),
        norm=_norm(loader, "model.norm"),
        head=loader.head(embedding),
        frequencies=tuple(_rope.frequencies(rope) for rope in geometry.ropes),
    )


def _norm(loader: Loader, name: str) -> Tensor:
    return loader.checkpoint.load(f"{name}.weight", torch.float32).add(1.0)
