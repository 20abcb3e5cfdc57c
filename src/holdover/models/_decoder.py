"""The decoder of every family in torch: the oracle, and what serves where nothing faster can.

Per layer, pre-norm attention and a gated MLP are added to the residual stream, each through a norm
of its own where the family has one.
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
from holdover.models._experts import ExpertWeights, expert_mlp, load_experts
from holdover.models._latent import LatentWeights, latent_attention, load_latent
from holdover.models._loading import Loader
from holdover.models.base import Family
from holdover.spec.dtypes import DType
from holdover.weights.base import Checkpoint


@dataclass(frozen=True, slots=True)
class Layer:
    attention: AttentionWeights | LatentWeights
    attention_post_norm: Tensor | None
    mlp: MlpWeights | ExpertWeights
    mlp_post_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """See `Model`. `frequencies` are per rope of the geometry; embeddings are times `scale`."""

    geometry: Geometry
    dtype: DType
    embedding: Tensor
    scale: float
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    frequencies: tuple[Tensor, ...]

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, geometry: Geometry, dtype: DType, family: Family
    ) -> Decoder:
        loader = Loader(checkpoint, geometry, dtype, family)
        embedding = loader.embedding()
        return cls(
            geometry=geometry,
            dtype=dtype,
            embedding=embedding,
            scale=embedding_scale(geometry, family, dtype),
            layers=loader.layers(lambda index: _layer(loader, index)),
            norm=loader.norm("model.norm"),
            head=loader.head(embedding),
            frequencies=tuple(_rope.frequencies(rope) for rope in geometry.ropes),
        )

    @property
    def weights_nbytes(self) -> int:
        return storage_nbytes(self)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        logit_rows: Tensor,
        hidden: Tensor | None = None,
    ) -> Tensor:
        last = self.embedding.new_empty(0, self.geometry.hidden_size)
        if len(token_ids):
            last = self._layers(token_ids, positions, step).index_select(0, logit_rows)
        if hidden is not None:
            hidden[: len(logit_rows)] = last
            last = hidden.to(last.dtype)  # whose values fp32 holds exactly
        return logits(last, self.norm, self.head, self.geometry)

    def _layers(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """The residual stream of all tokens behind the last layer."""
        g = self.geometry
        hidden = F.embedding(token_ids, self.embedding)
        if self.scale != 1.0:
            hidden *= self.scale
        angles = [
            _rope.angles(rope, turns, positions, hidden.dtype)
            for rope, turns in zip(g.ropes, self.frequencies, strict=True)
        ]
        sink_angles = {
            (rope, place): _rope.angles(
                g.ropes[rope], self.frequencies[rope], positions.clamp(max=place), hidden.dtype
            )
            for rope, place in {turn for turn in g.sink_turns if turn is not None}
        }
        for index, (layer, at_sinks) in enumerate(zip(self.layers, g.sink_turns, strict=True)):
            turn = angles[g.layer_ropes[index]]
            sink_turn = None if at_sinks is None else sink_angles[at_sinks]
            hidden += _normed(
                _attend(hidden, layer.attention, turn, sink_turn, index, step, g),
                layer.attention_post_norm,
                g,
            )
            hidden += _normed(_mlp(hidden, layer.mlp, g), layer.mlp_post_norm, g)
        return hidden


def embedding_scale(geometry: Geometry, family: Family, dtype: DType) -> float:
    """The root of the width, itself rounded to the model's dtype, as it was in training."""
    if not family.scaled_embedding:
        return 1.0
    factor = torch.tensor(geometry.hidden_size**0.5, dtype=getattr(torch, dtype.torch_name))
    return float(factor)


def _attend(
    hidden: Tensor,
    weights: AttentionWeights | LatentWeights,
    angles: _rope.Angles,
    sink_angles: _rope.Angles | None,
    layer: int,
    step: AttentionStep,
    geometry: Geometry,
) -> Tensor:
    if isinstance(weights, LatentWeights):
        assert sink_angles is None, "a window is not imposed on latents"
        return latent_attention(hidden, weights, angles, layer, step, geometry)
    return self_attention(hidden, weights, angles, sink_angles, layer, step, geometry)


def _mlp(hidden: Tensor, weights: MlpWeights | ExpertWeights, geometry: Geometry) -> Tensor:
    if isinstance(weights, ExpertWeights):
        return expert_mlp(hidden, weights, geometry)
    return gated_mlp(hidden, weights, geometry)


def _normed(x: Tensor, weight: Tensor | None, geometry: Geometry) -> Tensor:
    return x if weight is None else rms_norm(x, weight, geometry.norm_eps)


def _layer(loader: Loader, index: int) -> Layer:
    family, g = loader.family, loader.geometry
    mixes = g.experts is not None and g.experts.mixes(index)
    return Layer(
        attention=loader.attention(index) if g.latent is None else load_latent(loader, index),
        attention_post_norm=loader.layer_norm(index, family.attention_post_norm),
        mlp=load_experts(loader, index) if mixes else loader.mlp(index),
        mlp_post_norm=loader.layer_norm(index, family.mlp_post_norm),
    )
