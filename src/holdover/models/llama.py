"""The Llama family: pre-norm attention and a gated MLP, each added to the residual stream."""

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
    self_attention,
    storage_nbytes,
)
from holdover.models._loading import Loader
from holdover.spec.dtypes import DType
from holdover.weights.base import Checkpoint


@dataclass(frozen=True, slots=True)
class Layer:
    attention: AttentionWeights
    mlp: MlpWeights


@dataclass(frozen=True, slots=True)
class Llama:
    """See `Model`."""

    geometry: Geometry
    dtype: DType
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    frequencies: Tensor

    @property
    def weights_nbytes(self) -> int:
        return storage_nbytes(self)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, positions: Tensor, step: AttentionStep, logit_rows: Tensor
    ) -> Tensor:
        g = self.geometry
        hidden = F.embedding(token_ids, self.embedding)
        angles = _rope.angles(g.ropes[0], self.frequencies, positions, hidden.dtype)
        for index, layer in enumerate(self.layers):
            hidden += self_attention(hidden, layer.attention, angles, index, step, g)
            hidden += gated_mlp(hidden, layer.mlp, g)
        hidden = hidden.index_select(0, logit_rows)
        return logits(hidden, self.norm, self.head, g)


def load(checkpoint: Checkpoint, geometry: Geometry, dtype: DType) -> Llama:
    loader = Loader(checkpoint, geometry, dtype, _norm)
    embedding = loader.embedding()
    return Llama(
        geometry=geometry,
        dtype=dtype,
        embedding=embedding,
        layers=loader.layers(
            lambda layer: Layer(
                loader.attention(layer), loader.mlp(layer, "post_attention_layernorm")
            )
        ),
        norm=_norm(loader, "model.norm"),
        head=loader.head(embedding),
        frequencies=_rope.frequencies(geometry.ropes[0]),
    )


def _norm(loader: Loader, name: str) -> Tensor:
    return loader.stacked([f"{name}.weight"])
