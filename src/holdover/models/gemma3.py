"""Gemma 3: norms before and after each half of a layer, scaled embedding.

Norm weights are stored as their difference from one; the sum is held in fp32 as it is used.
"""

from __future__ import annotations

from holdover.models.base import Family

FAMILY = Family(
    mlp_norm="pre_feedforward_layernorm",
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    norms_from_one=True,
    scaled_embedding=True,
)
