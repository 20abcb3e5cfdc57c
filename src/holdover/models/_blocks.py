"""The parts that families share: norm, attention around the cache, gated MLP, logits.

Rounding points are those of transformers, so that bf16 tracks it and not only fp32. Intermediates
are dropped as soon as they are used: `holdover.plan.activations` counts what is alive when.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from holdover.geometry.base import Activation, Geometry
from holdover.kernels.base import AttentionStep
from holdover.models._rope import Angles, rotate


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """`qkv` stacks the rows of q, k and v; `qk_norm` is [query + KV heads, head dim].

    `sinks` are learned: fp32 [query heads].
    """

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    sinks: Tensor | None


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """`gate_up` stacks the rows of gate and up."""

    norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computed in fp32 over the last axis.

    A weight of x's dtype multiplies the rounded result, as in Llama; an fp32 weight multiplies
    before rounding, as in Gemma and gpt-oss.
    """
    width = (x.shape[-1],)
    if weight.dtype == x.dtype:
        return F.rms_norm(x, width, None, eps).mul_(weight)
    return F.rms_norm(x.float(), width, None, eps).mul_(weight).to(x.dtype)


def self_attention(
    hidden: Tensor,
    weights: AttentionWeights,
    angles: Angles,
    sink_angles: Angles | None,
    layer: int,
    step: AttentionStep,
    geometry: Geometry,
) -> Tensor:
    """Pre-norm, attention over the cache and output projection of `hidden` [tokens, hidden].

    `sink_angles` turn the query that meets sinks, where they have one of their own.
    """
    g = geometry
    split = g.query_width + g.kv_width
    qkv = F.linear(rms_norm(hidden, weights.norm, g.norm_eps), weights.qkv, weights.qkv_bias)
    heads = qkv[:, :split].view(-1, g.query_heads + g.kv_heads, g.head_dim)
    value = qkv[:, split:].view(-1, g.kv_heads, g.head_dim)
    if weights.qk_norm is not None:
        heads = rms_norm(heads, weights.qk_norm, g.norm_eps)
    sink_query = None if sink_angles is None else rotate(heads[:, : g.query_heads], sink_angles)
    heads = rotate(heads, angles)
    step.write(layer, {"k": heads[:, g.query_heads :], "v": value})
    del qkv, value
    query = heads[:, : g.query_heads]
    mixed = step.attend(
        layer, query, g.attention_scale, g.attention_softcap,
        sink_query=sink_query, sink_logits=weights.sinks,
    )  # fmt: skip
    del heads, query, sink_query
    return F.linear(mixed.flatten(1), weights.output, weights.output_bias)


def gated_mlp(hidden: Tensor, weights: MlpWeights, geometry: Geometry) -> Tensor:
    """Pre-norm and gated MLP of `hidden` [tokens, hidden]."""
    x = rms_norm(hidden, weights.norm, geometry.norm_eps)
    x = F.linear(x, weights.gate_up, weights.gate_up_bias)
    x = gated(x, geometry.activation)
    return F.linear(x, weights.down, weights.down_bias)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) x up of `gate_up` [tokens, 2 inner], the gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return _activate(gate, activation).mul_(up)


def logits(hidden: Tensor, norm: Tensor, head: Tensor, geometry: Geometry) -> Tensor:
    """float32 [rows, vocab] of `hidden` [rows, hidden], rounded to its dtype on the way."""
    scores = F.linear(rms_norm(hidden, norm, geometry.norm_eps), head)
    if geometry.final_softcap:
        scores.div_(geometry.final_softcap).tanh_().mul_(geometry.final_softcap)
    return scores.float()


def storage_nbytes(model: object) -> int:
    """Bytes of every tensor reachable through dataclass fields and tuples, each storage once."""
    return sum(_storages(model).values())


def _storages(node: Any) -> dict[int, int]:
    if isinstance(node, Tensor):
        storage = node.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    parts: list[Any] = []
    if is_dataclass(node):
        parts = [getattr(node, field.name) for field in fields(node)]
    elif isinstance(node, tuple):
        parts = list(node)
    found: dict[int, int] = {}
    for part in parts:
        found |= _storages(part)
    return found


def _activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
