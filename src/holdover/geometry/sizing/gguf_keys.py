"""GGUF keys and architectures: what each is called in a config, and what only llama.cpp knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdover.errors import ConfigError

# Key after the architecture's name -> the common name in a config.
NAMES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.key_length_swa": "swa_head_dim",
    "attention.value_length_swa": "swa_v_head_dim",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.chunk_size": "attention_chunk_size",
    "attention.indexer.key_length": "index_head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "shortconv.l_cache": "conv_L_cache",
    "wkv.head_size": "head_size",
    "vocab_size": "vocab_size",
}

# Keys that are read elsewhere here, or change nothing that is kept.
HARMLESS = re.compile(
    r"attention\.(sliding_window_pattern|q_lora_rank|decay_lora|iclr_lora|value_residual|gate_lora|"
    r"layer_norm|group_norm|max_alibi|clamp_kqv|causal|relative_buckets|scale|output_scale|"
    r"temperature|key_length_mla|value_length_mla|indexer\.(head_count|top_k))|"
    r"rope\.|feed_forward_length|expert|leading_dense|moe_|full_attention_interval|ssm\.|"
    r"kda\.head_dim|decoder_|use_parallel|tensor_data|n_deepstack|pooling|logit_scale|attn_logit|"
    r"router_logit|final_logit|swin_norm|rescale_every|time_|residual_scale|embedding_|"
    r"token_shift_count|interleave_moe|activation_sparsity|altup|swiglu|dense_|vision|features_|"
    r"classifier|bos_|eos_|xielu|\d+_feat|hidden_act|cross_attention_layers$"
)

# Architecture -> the model type whose mechanisms are its own.
_SAME = (
    "llama", "falcon", "baichuan", "grok", "gpt2", "gptj", "gptneox", "mpt", "starcoder",
    "refact", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe",
    "qwen3vl", "qwen3vlmoe", "phi2", "phi3", "phimoe", "plamo", "codeshell", "orion", "internlm2",
    "minicpm", "minicpm3", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "starcoder2",
    "xverse", "command-r", "cohere2", "dbrx", "olmo", "olmo2", "olmoe", "openelm", "arctic",
    "deepseek", "deepseek2", "chatglm", "glm4", "glm4moe", "glm-dsa", "bitnet", "t5", "jais",
    "nemotron", "exaone", "exaone4", "exaone-moe", "granite", "granitemoe", "plm", "bailingmoe",
    "bailingmoe2", "dots1", "arcee", "afmoe", "ernie4_5", "ernie4_5-moe", "hunyuan-moe",
    "hunyuan-dense", "smollm3", "gpt-oss", "seed_oss", "apertus", "minimax-m2", "smallthinker",
    "mistral3", "mistral4", "mimo2", "step35", "deci", "llama4", "lfm2", "lfm2moe", "qwen3next",
    "qwen35", "qwen35moe", "kimi-linear", "plamo3", "maincoder", "grovemoe",
)  # fmt: skip
TYPES = {
    **{f"{name}": f"{name} (GGUF)" for name in _SAME},
    "t5": "t5", "lfm2": "lfm2", "lfm2moe": "lfm2_moe", "llama4": "llama4_text",
    "mamba": "mamba", "jamba": "mamba", "mamba2": "mamba2", "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h", "granitehybrid": "granitemoehybrid",
    "falcon-h1": "falcon_h1", "rwkv6": "rwkv6", "rwkv7": "rwkv7",
}  # fmt: skip

# What a layer without KV heads is.
RECURRENT = {
    "jamba": "linear_attention", "granitehybrid": "linear_attention", "mamba": "linear_attention",
    "mamba2": "linear_attention", "rwkv6": "linear_attention", "rwkv7": "linear_attention",
    "kimi-linear": "linear_attention", "lfm2": "conv", "lfm2moe": "conv", "deci": "none",
}  # fmt: skip

# (period, whether the full layer is the first of it) of architectures that say only their window;
# a period of 0: every layer slides.
PATTERNS = {
    "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False),
    "cohere2": (4, False), "exaone4": (4, False), "exaone-moe": (4, False), "olmo2": (4, False),
    "afmoe": (4, False), "plamo3": (8, False), "smallthinker": (4, True), "phi3": (0, False),
    "llama": (0, False), "starcoder2": (0, False), "phimoe": (0, False), "mistral3": (0, False),
}  # fmt: skip

_GATED_DELTA = ("qwen3next", "qwen35", "qwen35moe")
_MAMBA1 = ("mamba", "jamba")


def recurrent_fields(architecture: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The `ssm` keys, which mean different things in different architectures."""
    if "ssm.conv_kernel" not in keys:
        return {}
    kernel = keys["ssm.conv_kernel"]
    inner: Any = keys.get("ssm.inner_size")
    heads: Any = keys.get("ssm.time_step_rank")
    size, groups = keys.get("ssm.state_size"), keys.get("ssm.group_count")
    if architecture == "kimi-linear":
        return {"linear_attn_config": {
            "num_heads": keys.get("attention.head_count"), "head_dim": keys.get("kda.head_dim"),
            "short_conv_kernel_size": kernel,
        }}  # fmt: skip
    if architecture in _MAMBA1:
        return {"intermediate_size": inner, "state_size": size, "conv_kernel": kernel}
    if not all(isinstance(n, int) and n > 0 for n in (inner, heads)) or inner % heads:
        raise ConfigError("ssm.inner_size", f"{inner!r} is no multiple of time_step_rank {heads!r}")
    if architecture in _GATED_DELTA:
        return {
            "linear_num_value_heads": heads, "linear_value_head_dim": inner // heads,
            "linear_num_key_heads": groups, "linear_key_head_dim": size,
            "linear_conv_kernel_dim": kernel,
        }  # fmt: skip
    return {
        "mamba_num_heads": heads, "mamba_head_dim": inner // heads, "ssm_state_size": size,
        "n_groups": groups or 1, "conv_kernel": kernel,
    }  # fmt: skip
