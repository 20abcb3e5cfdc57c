"""DeepSeek-V2 and V3: latent attention and, after some dense layers, experts."""

from __future__ import annotations

from holdover.models.base import Family

FAMILY = Family(mlp_norm="post_attention_layernorm")
