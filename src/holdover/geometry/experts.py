"""A mixture of experts in place of a layer's gated MLP: its numbers and its stored tensors.

Families differ in how scores become choices and weights; all of it is data here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "softmax of chosen"]
"""What weights are made of: scores of all experts, or of the chosen ones alone."""

ROUTER = "mlp.gate.weight"
CHOICE_BIAS = "mlp.gate.e_score_correction_bias"
FUSED_ROUTER, FUSED_ROUTER_BIAS = "mlp.router.weight", "mlp.router.bias"
WIDE = (ROUTER, CHOICE_BIAS, FUSED_ROUTER, FUSED_ROUTER_BIAS)  # held in fp32, always
SWIGLU_SLOPE = 1.702  # of gpt-oss' clamped activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Layers from `first_layer` on have `count` experts, of which a token goes through `chosen`.

    Experts lie in `groups` of equal size, and are chosen from the `chosen_groups` whose
    `group_best` best scores sum to the most. A choice bias is added to scores for choosing alone.
    `swiglu_limit` clamps gates and ups as gpt-oss does; 0: the model's activation, unclamped.
    `fused` is gpt-oss' way to store a layer's experts: one tensor for all, inputs before outputs,
    each gate beside its up, and biases of the router and of every expert.
    """

    count: int
    chosen: int
    inner_size: int
    shared_inner_size: int = 0  # of the experts that every token goes through, side by side
    first_layer: int = 0
    scoring: Scoring = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    normalised: bool = False  # weights sum to one before they are scaled
    scale: float = 1.0
    choice_bias: bool = False
    swiglu_limit: float = 0.0
    fused: bool = False

    def mixes(self, layer: int) -> bool:
        return layer >= self.first_layer


def expert_tensors(experts: Experts, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's stored tensors, by the name after `model.layers.N.`."""
    e = experts
    if e.fused:
        return _fused_tensors(e, hidden_size)
    shapes: dict[str, tuple[int, ...]] = {ROUTER: (e.count, hidden_size)}
    if e.choice_bias:
        shapes[CHOICE_BIAS] = (e.count,)
    mlps = {f"mlp.experts.{index}": e.inner_size for index in range(e.count)}
    if e.shared_inner_size:
        mlps["mlp.shared_experts"] = e.shared_inner_size
    for name, inner in mlps.items():
        shapes[f"{name}.gate_proj.weight"] = (inner, hidden_size)
        shapes[f"{name}.up_proj.weight"] = (inner, hidden_size)
        shapes[f"{name}.down_proj.weight"] = (hidden_size, inner)
    return shapes


def _fused_tensors(experts: Experts, hidden_size: int) -> dict[str, tuple[int, ...]]:
    count, inner = experts.count, experts.inner_size
    return {
        FUSED_ROUTER: (count, hidden_size),
        FUSED_ROUTER_BIAS: (count,),
        "mlp.experts.gate_up_proj": (count, hidden_size, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
        "mlp.experts.down_proj": (count, inner, hidden_size),
        "mlp.experts.down_proj_bias": (count, hidden_size),
    }
