"""gpt-oss: learned sinks, experts in every layer, norms that are held and multiplied in fp32."""

from __future__ import annotations

from holdover.models.base import Family

FAMILY = Family(mlp_norm="post_attention_layernorm", wide_norms=True)
