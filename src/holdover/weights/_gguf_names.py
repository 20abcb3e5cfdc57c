"""GGUF tensor names to Hugging Face names, per architecture that is served."""

from __future__ import annotations

import re

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
# Gemma has norms before and after both halves of a layer, so `ffn_norm` is another one there.
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

# Not a weight: the factors that divide Llama 3's rotary frequencies. Read into the config.
ROPE_FACTORS = "rope_freqs.weight"


def hf_name(architecture: str, gguf_name: str) -> str | None:
    """The Hugging Face name of a tensor, or None for one that this architecture does not have."""
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None:
        return None
    layer, part, suffix = match.groups()
    name = (_GEMMA_LAYER if architecture == "gemma3" else _LAYER).get(part)
    return None if name is None else f"model.layers.{layer}.{name}.{suffix}"
