"""Multi-head latent attention in absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    head's score = (q_nope W_UK) . latent + q_rope . rope        value = (weights . latents) W_UV

What is written and attended to is one latent and one rotary key a token, for all heads alike; keys
and values are never made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from holdover.geometry.base import Geometry
from holdover.geometry.latent import LATENT_DOWN, LATENT_UP, NORM_EPS, Latent
from holdover.kernels.base import AttentionStep
from holdover.models._blocks import rms_norm
from holdover.models._rope import Angles, rotate

if TYPE_CHECKING:
    from holdover.models._loading import Loader


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Rows that make rotary elements stand in halves, as they are turned.

    `key_up` [heads, nope dim, rank] and `value_up` [heads, rank, value dim] are views of one
    stored matrix.
    """

    norm: Tensor
    query_down: Tensor | None
    query_down_bias: Tensor | None
    query_norm: Tensor | None
    query_up: Tensor
    latent_down: Tensor
    latent_down_bias: Tensor | None
    latent_norm: Tensor
    key_up: Tensor
    value_up: Tensor
    output: Tensor
    output_bias: Tensor | None


def load_latent(loader: Loader, layer: int) -> LatentWeights:
    g = loader.geometry
    m = g.latent
    assert m is not None
    prefix = f"model.layers.{layer}"

    def part(name: str, wanted: bool = True) -> Tensor | None:
        return loader.stacked([f"{prefix}.{name}"]) if wanted else None

    def weight(name: str) -> Tensor:
        return loader.stacked([f"{prefix}.{name}.weight"])

    up = weight(LATENT_UP).view(g.query_heads, m.nope_dim + m.value_dim, m.rank)
    down_bias = part(f"{LATENT_DOWN}.bias", g.output_bias)
    return LatentWeights(
        norm=loader.norm(f"{prefix}.input_layernorm"),
        query_down=part("self_attn.q_a_proj.weight", m.query_rank > 0),
        query_down_bias=part("self_attn.q_a_proj.bias", m.query_rank > 0 and g.output_bias),
        query_norm=loader.norm(f"{prefix}.self_attn.q_a_layernorm") if m.query_rank else None,
        query_up=_in_halves(weight(m.query_up), m, g.query_heads),
        latent_down=_in_halves(weight(LATENT_DOWN), m, heads=1),
        latent_down_bias=None if down_bias is None else _in_halves(down_bias, m, heads=1),
        latent_norm=loader.norm(f"{prefix}.self_attn.kv_a_layernorm"),
        key_up=up[:, : m.nope_dim],
        value_up=up[:, m.nope_dim :].transpose(1, 2),
        output=weight("self_attn.o_proj"),
        output_bias=part("self_attn.o_proj.bias", g.output_bias),
    )


def latent_attention(
    hidden: Tensor,
    weights: LatentWeights,
    angles: Angles,
    layer: int,
    step: AttentionStep,
    geometry: Geometry,
) -> Tensor:
    """Pre-norm, attention over the cache and output projection of `hidden` [tokens, hidden]."""
    g, w = geometry, weights
    m = g.latent
    assert m is not None
    x = rms_norm(hidden, w.norm, g.norm_eps)
    row = F.linear(x, w.latent_down, w.latent_down_bias)
    if w.query_down is not None and w.query_norm is not None:
        x = rms_norm(F.linear(x, w.query_down, w.query_down_bias), w.query_norm, NORM_EPS)
    heads = F.linear(x, w.query_up).view(-1, g.query_heads, m.head_dim)
    del x
    latent = rms_norm(row[:, : m.rank], w.latent_norm, NORM_EPS)
    rope = rotate(row[:, None, m.rank :], angles)
    step.write(layer, {"latent": latent[:, None], "rope": rope})
    del row, latent, rope
    query = hidden.new_empty(len(hidden), g.query_heads, m.row_dim)
    query[..., m.rank :] = rotate(heads[..., m.nope_dim :], angles)
    query[..., : m.rank] = torch.bmm(heads[..., : m.nope_dim].transpose(0, 1), w.key_up).transpose(
        0, 1
    )
    del heads
    mixed = step.attend(layer, query, g.attention_scale, g.attention_softcap)
    del query
    values = torch.bmm(mixed.transpose(0, 1), w.value_up).transpose(0, 1)
    del mixed
    return F.linear(values.flatten(1), w.output, w.output_bias)


def _in_halves(rows: Tensor, latent: Latent, heads: int) -> Tensor:
    """Rows [heads x (rest, rotary), ...] with pairs side by side, in place with those in halves."""
    if latent.interleaved:
        turned = rows.view(heads, -1, *rows.shape[1:])[:, -latent.rope_dim :]
        turned.copy_(torch.cat((turned[:, ::2], turned[:, 1::2]), dim=1))
    return rows
