"""Mixtures of experts against transformers' modules, and each rule of choice by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdover.geometry.base import Geometry, read_geometry
from holdover.geometry.experts import Experts
from holdover.models._experts import ExpertWeights, expert_mlp, route

from .conftest import _LATENT, TINY

HIDDEN, COUNT, CHOSEN, INNER = 24, 8, 3, 20


def weights(experts: Experts, **changes: Any) -> ExpertWeights:
    torch.manual_seed(0)
    made: dict[str, Any] = {
        "norm": torch.ones(HIDDEN),
        "router": torch.randn(COUNT, HIDDEN),
        "router_bias": None,
        "choice_bias": torch.randn(COUNT) if experts.choice_bias else None,
        "gate_up": torch.randn(COUNT, 2 * INNER, HIDDEN),
        "gate_up_bias": None,
        "down": torch.randn(COUNT, HIDDEN, INNER),
        "down_bias": None,
        "shared_gate_up": None,
        "shared_down": None,
    }
    return ExpertWeights(**made | changes)


def geometry(experts: Experts) -> Geometry:
    from dataclasses import replace

    read = read_geometry(TINY | _LATENT | {"model_type": "deepseek_v2", "q_lora_rank": None})
    return replace(read, hidden_size=HIDDEN, experts=experts)


def test_gpt_oss() -> None:
    """Scores of the chosen alone, biases everywhere, clamped gates and ups."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=COUNT,
        num_experts_per_tok=CHOSEN,
    )  # fmt: skip
    config._experts_implementation = "eager"
    torch.manual_seed(1)
    theirs = GptOssMLP(config)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(0, 0.7)
    inner, down = theirs.experts.gate_up_proj.data.mT, theirs.experts.down_proj.data.mT
    bias = theirs.experts.gate_up_proj_bias.data
    experts = Experts(
        count=COUNT, chosen=CHOSEN, inner_size=INNER, scoring="softmax of chosen",
        swiglu_limit=config.swiglu_limit if hasattr(config, "swiglu_limit") else 7.0,
    )  # fmt: skip
    ours = weights(
        experts,
        router=theirs.router.weight.data,
        router_bias=theirs.router.bias.data,
        gate_up=torch.cat((inner[:, ::2], inner[:, 1::2]), 1),  # theirs lie side by side
        gate_up_bias=torch.cat((bias[:, ::2], bias[:, 1::2]), 1),
        down=down.contiguous(),
        down_bias=theirs.experts.down_proj_bias.data,
    )
    x = torch.randn(30, HIDDEN) * 3
    normed = torch.nn.functional.rms_norm(x, (HIDDEN,), None, 1e-6)
    with torch.no_grad():
        expected = theirs(normed[None])[0][0]
        found = expert_mlp(x, ours, geometry(experts))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (normed @ inner.mT).abs().max() > 7, "nothing was clamped"


@pytest.mark.parametrize("best", [1, 2])
def test_experts_are_from_the_best_groups(best: int) -> None:
    experts = Experts(
        count=COUNT, chosen=CHOSEN, inner_size=INNER, scoring="sigmoid", groups=4,
        chosen_groups=2, group_best=best, normalised=True, scale=2.5, choice_bias=True,
    )  # fmt: skip
    w = weights(experts)
    x = torch.randn(50, HIDDEN)
    chosen, shares = route(x, w, experts)
    torch.testing.assert_close(shares.sum(-1), torch.full((50,), 2.5))
    assert w.choice_bias is not None
    scores = (x @ w.router.T).sigmoid()
    for row, picked, given in zip(scores, chosen.tolist(), shares, strict=True):
        biased = (row + w.choice_bias).view(4, 2)
        good = biased.sort(-1, descending=True).values[:, :best].sum(-1)
        groups = good.argsort(descending=True)[:2].tolist()
        allowed = [g * 2 + i for g in groups for i in range(2)]
        want = sorted(allowed, key=lambda e: -float(row[e] + w.choice_bias[e]))[:CHOSEN]
        assert sorted(picked) == sorted(want)
        torch.testing.assert_close(given, 2.5 * row[picked] / row[picked].sum())


def test_a_token_alone_is_as_in_a_batch() -> None:
    experts = Experts(count=COUNT, chosen=CHOSEN, inner_size=INNER)
    w, g = weights(experts), geometry(experts)
    x = torch.randn(40, HIDDEN)
    together = expert_mlp(x, w, g)
    for row in (0, 17, 39):
        torch.testing.assert_close(
            expert_mlp(x[row : row + 1], w, g)[0], together[row], rtol=1e-4, atol=1e-3
        )
