"""A mixture of experts: which of them a token goes through, and what they add.

Routers work in fp32. Each token's experts are summed from the first to the last, whatever other
tokens are beside it. Rounding points are those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.geometry.base import Geometry
from holdover.geometry.experts import (
    CHOICE_BIAS,
    FUSED_ROUTER,
    FUSED_ROUTER_BIAS,
    ROUTER,
    SWIGLU_SLOPE,
    Experts,
)
from holdover.models._blocks import gated, rms_norm

if TYPE_CHECKING:
    from holdover.models._loading import Loader


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """`gate_up` [experts, 2 inner, hidden] has an expert's gate above its up.

    `router` [experts, hidden] and its biases are fp32: `router_bias` is part of the scores,
    `choice_bias` is for choosing alone. The shared experts are one gated MLP.
    """

    norm: Tensor
    router: Tensor
    router_bias: Tensor | None
    choice_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None  # [experts, 2 inner]
    down: Tensor  # [experts, hidden, inner]
    down_bias: Tensor | None  # [experts, hidden]
    shared_gate_up: Tensor | None
    shared_down: Tensor | None


def load_experts(loader: Loader, layer: int) -> ExpertWeights:
    experts = loader.geometry.experts
    assert experts is not None
    e, prefix = experts, f"model.layers.{layer}"
    if e.fused:
        return _load_fused(loader, e, prefix)
    each = [f"{prefix}.mlp.experts.{index}" for index in range(e.count)]
    shared = f"{prefix}.mlp.shared_experts"
    gates_ups = [f"{one}.{part}_proj.weight" for one in each for part in ("gate", "up")]
    downs = [f"{one}.down_proj.weight" for one in each]
    return ExpertWeights(
        norm=loader.norm(f"{prefix}.{loader.family.mlp_norm}"),
        router=loader.wide(f"{prefix}.{ROUTER}"),
        router_bias=None,
        choice_bias=loader.wide(f"{prefix}.{CHOICE_BIAS}") if e.choice_bias else None,
        gate_up=loader.stacked(gates_ups).view(e.count, 2 * e.inner_size, -1),
        gate_up_bias=None,
        down=loader.stacked(downs).view(e.count, -1, e.inner_size),
        down_bias=None,
        shared_gate_up=loader.stacked([f"{shared}.{part}_proj.weight" for part in ("gate", "up")])
        if e.shared_inner_size
        else None,
        shared_down=loader.stacked([f"{shared}.down_proj.weight"]) if e.shared_inner_size else None,
    )


def _load_fused(loader: Loader, experts: Experts, prefix: str) -> ExpertWeights:
    """Tensors of all experts, turned: outputs before inputs, all gates before all ups."""
    e, stored = experts, f"{prefix}.mlp.experts"

    def in_halves(x: Tensor) -> Tensor:
        """[experts, 2 inner, ...] with each gate beside its up."""
        return x.view(len(x), e.inner_size, 2, *x.shape[2:]).transpose(1, 2)

    return ExpertWeights(
        norm=loader.norm(f"{prefix}.{loader.family.mlp_norm}"),
        router=loader.wide(f"{prefix}.{FUSED_ROUTER}"),
        router_bias=loader.wide(f"{prefix}.{FUSED_ROUTER_BIAS}"),
        choice_bias=None,
        gate_up=loader.turned(f"{stored}.gate_up_proj", lambda x: in_halves(x.mT)).flatten(1, 2),
        gate_up_bias=loader.turned(f"{stored}.gate_up_proj_bias", in_halves).flatten(1),
        down=loader.turned(f"{stored}.down_proj", lambda x: x.mT),
        down_bias=loader.stacked([f"{stored}.down_proj_bias"]),
        shared_gate_up=None,
        shared_down=None,
    )


def expert_mlp(hidden: Tensor, weights: ExpertWeights, geometry: Geometry) -> Tensor:
    """Pre-norm and mixture of `hidden` [tokens, hidden]."""
    experts = geometry.experts
    assert experts is not None
    x = rms_norm(hidden, weights.norm, geometry.norm_eps)
    chosen, shares = route(x, weights, experts)
    mixed = _mix(x, chosen, shares, weights, geometry)
    if weights.shared_gate_up is None or weights.shared_down is None:
        return mixed
    x = F.linear(x, weights.shared_gate_up)
    x = gated(x, geometry.activation)
    return mixed.add_(F.linear(x, weights.shared_down))


def route(x: Tensor, weights: ExpertWeights, experts: Experts) -> tuple[Tensor, Tensor]:
    """Experts int64 [tokens, chosen] of `x` [tokens, hidden], and their fp32 weights."""
    e = experts
    logits = F.linear(x.float(), weights.router, weights.router_bias)
    if e.scoring == "softmax of chosen":
        best, chosen = logits.topk(e.chosen, dim=-1)
        return chosen, best.softmax(-1)
    scores = logits.softmax(-1) if e.scoring == "softmax" else logits.sigmoid()
    for_choice = scores if weights.choice_bias is None else scores + weights.choice_bias
    if e.groups > 1:
        for_choice = _within_best_groups(for_choice, e)
    chosen = for_choice.topk(e.chosen, dim=-1).indices
    shares = scores.gather(1, chosen)
    if e.normalised:
        shares /= shares.sum(-1, keepdim=True) + 1e-20
    return chosen, shares.mul_(e.scale)


def _within_best_groups(scores: Tensor, experts: Experts) -> Tensor:
    """`scores` [tokens, experts], minus infinity outside each token's best groups."""
    e = experts
    grouped = scores.view(-1, e.groups, e.count // e.groups)
    good = grouped.topk(e.group_best, dim=-1).values.sum(-1)
    best = good.topk(e.chosen_groups, dim=-1).indices
    outside = torch.ones_like(good, dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(outside[..., None], -torch.inf).flatten(-2)


def _mix(
    x: Tensor, chosen: Tensor, shares: Tensor, weights: ExpertWeights, geometry: Geometry
) -> Tensor:
    """Sum over each token's experts, one expert after the other with all of its tokens."""
    experts = geometry.experts
    assert experts is not None
    mixed = torch.zeros_like(x)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=experts.count).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        places = order[start : start + count]
        start += count
        tokens = places // experts.chosen
        part = _one(x[tokens], expert, weights, geometry, experts.swiglu_limit)
        part = part * shares.flatten()[places, None]
        mixed.index_add_(0, tokens, part.to(mixed.dtype))
        del part
    return mixed


def _one(x: Tensor, expert: int, w: ExpertWeights, geometry: Geometry, limit: float) -> Tensor:
    inner = F.linear(
        x, w.gate_up[expert], None if w.gate_up_bias is None else w.gate_up_bias[expert]
    )
    del x
    inner = _clamped_swiglu(inner, limit) if limit else gated(inner, geometry.activation)
    return F.linear(inner, w.down[expert], None if w.down_bias is None else w.down_bias[expert])


def _clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """(up + 1) gate sigmoid(1.702 gate) of `gate_up` [tokens, 2 inner], which is written over."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate.clamp_(max=limit)
    up.clamp_(-limit, limit).add_(1)
    return (gate * SWIGLU_SLOPE).sigmoid_().mul_(gate).mul_(up)
