"""The names under which published configs state the same thing, and what each layer kind is called.

The first name of a tuple is the common one, used in messages. Two names of one tuple that are both
in a file and differ are refused, unless the model type says which one counts.
"""

from __future__ import annotations

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
HIDDEN = ("hidden_size", "n_embd", "d_model", "embedding_dim", "emb_dim", "n_embed")
QUERY_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_query_heads",
)  # fmt: skip
KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads",
    "num_attention_groups", "multi_query_group_num", "num_query_groups",
)  # fmt: skip
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "d_kv", "d_head", "dim_head")
VALUE_DIM = ("v_head_dim",)
WINDOW = (
    "sliding_window", "sliding_window_size", "attention_window_size", "local_attention_window",
    "window_size",
)  # fmt: skip
CONTEXT = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length",
    "max_target_positions", "n_ctx", "context_length", "max_context_length", "model_max_length",
)  # fmt: skip

# Layers that predict further tokens, which lists of layers may hold too.
MTP_COUNTS = (
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers",
    "mtp_num_layers", "n_mtp_layers",
)  # fmt: skip

# Where a window layer has heads of its own.
SLIDING = {
    KV_HEADS: ("swa_num_key_value_heads", "num_swa_key_value_heads"),
    QUERY_HEADS: ("swa_num_attention_heads", "num_swa_attention_heads"),
    HEAD_DIM: ("swa_head_dim",),
    VALUE_DIM: ("swa_v_head_dim",),
}

# What a config calls a layer -> the kind that a mechanism serves.
KINDS = {
    "full_attention": "full", "attention": "full", "full": "full", "global": "full",
    "global_attention": "full", "attn": "full", "*": "full", "G": "full",
    "sliding_attention": "sliding", "local_attention": "sliding", "local": "sliding",
    "sliding": "sliding", "swa": "sliding", "L": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear", "recurrent": "linear", "mamba": "linear", "mamba2": "linear",
    "M": "linear", "kda": "linear", "gated_deltanet": "linear", "linear": "linear",
    "conv": "conv", "short_conv": "conv",
    # All of the prompt, and a window of what is generated: in full as long as the answer is short.
    "reference_sliding_attention": "full",
    "indexed_attention": "indexed", "deepseek_sparse_attention": "indexed",
    "minimax_m3_sparse": "indexed",
    "compressed_sparse_attention": "compressed_sparse",
    "heavily_compressed_attention": "heavily_compressed",
    "parallel": "parallel", "hybrid": "hybrid", "hybrid_sliding": "hybrid_sliding",
    "cross_attention": "cross",
    "moe": "none", "mlp": "none", "-": "none", "E": "none", "no_op": "none", "none": "none",
}  # fmt: skip

# The text model inside a multimodal config.
TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")

# Types that only their own repositories' code knows -> the type of transformers whose class
# defaults and layer rules are theirs; None: they state everything.
REMOTE_TYPES: dict[str, str | None] = {
    "phi3_v": "phi3", "phi-msft": "phi", "kimi_k2": "deepseek_v3", "step3p7": "step3p5",
    "deepseek_ref": "deepseek_v4", "internlm": None, "internlm2": None, "minicpm": None,
    "qwen": None, "exaone": None, "chatglm": None, "baichuan": None, "baichuan_m1": None,
    "rwkv5": None, "rwkv6": None, "rwkv7": None, "nemotron-nas": None, "openelm": None,
    "minimax_text_01": "minimax", "minimax_m1": "minimax", "glm": None, "decilm": None,
    "mistral_large": "mistral", "ministral3": None, "aquila": None, "orion": None,
    "xverse": None, "yi": None, "telechat": None, "mimo_v2": "mimo_v2_flash", "hunyuan": None,
    "deepseek_v3_2": "deepseek_v32",
}  # fmt: skip
