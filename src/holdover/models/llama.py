"""The Llama family: pre-norm attention and a gated MLP, each added to the residual stream."""

from __future__ import annotations

from holdover.models.base import Family

FAMILY = Family(mlp_norm="post_attention_layernorm")
