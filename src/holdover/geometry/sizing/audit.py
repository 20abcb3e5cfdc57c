"""Fails closed on fields that nobody read and that may change what a model remembers.

A key that a mechanism or a pattern asked for is understood. Any other key that has a value and
whose name is of caches, windows, states or layer kinds must be in the list of names that are
known to change nothing that is kept, or the config is refused. Of a type that nobody knows only
plain attention is taken at its fields' word: whatever else is there is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.reader import Reader

_SMELLS = re.compile(
    r"window|slid|swa_|_swa|chunk|cache|compress|index|state|ssm|mamba|conv(?!er)|recur|lru|"
    r"share|latent|kv_|_kv|key_value|retention|rwkv|memor|attn_type|attention_type|layer_type|"
    r"block_type|pattern|layers_block|sparse|linear_(?!scal|bias)|cross_attention|per_layer|"
    r"loop|cycle|attn_layer|local_|global_|period|interval|sink|hash|lsh|every_n|landmark|"
    r"_layers_config|gate_kv|yoco|cla_|mem_"
)
# Looks like it, but changes nothing that is kept.
_HARMLESS = re.compile(
    r"chunk_size_feed_forward|expert|moe|mlp|use_cache$|cache_implementation|output_hidden_states|"
    r"hidden_states|token_id|_index$|index_n_heads|index_topk|index_rope|indexer_rope|"
    r"conv_bias|conv_act|proj_bias|mamba_chunk_size|mamba_act|hidden_mamba_act|"
    r"mamba_hidden_act|use_mamba_kernels|mamba_proj|mamba_norm|mamba_rms|mamba_dt|mamba_mlp|"
    r"mamba_use_mlp|mamba_conv_bias|mamba_ssm_cache_dtype|mamba_ssm_dtype|ssm_multipliers|"
    r"ssm_(in|out)_multiplier|share_expert|shared_intermediate|shared_expert|n_shared|num_shared|"
    r"decoder_sparse_step|compress_rope_theta|compression_config|quantization|"
    r"max_window_layers|use_sliding_window|activation_sparsity|layer_norm|num_hash_layers|"
    r"linear_allow|linear_dt|linear_a_log|rope|theta|use_conv_bias|_dropout|loss|coef|"
    r"interleave_moe|use_attn_sinks|attention_sink_bias|"
    r"attn_implementation|share_(q|encoder|decoder)|tie_|layer_period|expert_layer|"
    r"hidden_size_per_layer|vocab_size_per_layer|per_layer_input|share_embeddings|"
    r"linear_lower_bound|use_cla$|cla_share_factor|index_block_size|index_local|"
    r"^(bf16|fp16|fp32)$|summary|image|vision|audio|video|projector|swa_rope|(?<!attention_)chunk_size$|"
    r"attn_logit|qkv|num_mem_blocks|^hc_|index_share_for_mtp|multi_query|pruned_heads|is_decoder|add_cross_attention|cross_attention_hidden|"
    r"kv_cache_dtype|cache_dtype|kv_cache_quant|time_step|scale|no_rope|qk_|state_dict|"
    r"use_shared_attention_adapter|max_inference_chunksize|chunkwise|inference_state_dtype|"
    r"return_last_states|sequence_kernel"
)
# Means plain attention whatever the type.
_PLAIN = frozenset(
    (*names.LAYERS, *names.HIDDEN, *names.QUERY_HEADS, *names.KV_HEADS, *names.HEAD_DIM,
     *names.CONTEXT)
)  # fmt: skip
_PLAIN_KINDS = frozenset(("full", "sliding"))
# Harmless in the types that are known to have it, and a sign of something else in others.
_SIGNS = re.compile(
    r"mamba|ssm|linear_(?!scal|bias)|conv_(?!bias)|conv1d|num_hash|^index|indexer|compress_|lora_rank|"
    r"qk_(nope|rope)|recur|lru|delta|time_mix|token_shift|share_for|per_layer_(input|config)|"
    r"attn_layer|v_head_dim|shared_attention|no_rope|nope|temperature_tuning|interleave|is_encoder_decoder|add_cross|block_configs"
)
# Looks like it elsewhere, but not in these types: masks, encoders, what is computed and not kept.
_HARMLESS_IN = {
    "big_bird": ("attention_type",),
    "bigbird_pegasus": ("attention_type",),
    "doge": ("keep_window_size",),  # what its dynamic mask leaves visible
    "evolla": ("resampler_num_latents",),
    "glm5_next_text": ("index_kpool", "index_kpool_always_select_tail"),
    "hrm_text": ("L_bp_cycles",),
    "inkling2_loop_text": ("loop_gate_rank", "number_of_conv_states"),
    "inkling2_text": ("number_of_conv_states",),
    "inkling_text": ("number_of_conv_states",),
    "laguna": ("num_attention_heads_per_layer",),  # of queries
    "minimax": ("linear_attn_alpha_factor", "linear_attn_beta_factor"),
    "nllb-moe": ("encoder_sparse_step",),
    "speech_to_text": ("num_conv_layers", "conv_channels", "conv_kernel_sizes"),
    "qwen4_exp_text": ("indexer_n_heads", "indexer_compress_ratio", "indexer_budget",
                       "number_of_conv_states"),
    "step3p5": ("num_sliding_attention_heads",),
    "step3p7_text": ("num_sliding_attention_heads",),
    "switch_transformers": ("num_sparse_encoder_layers", "num_sparse_decoder_layers",
                            "encoder_sparse_step"),
    "hy_v4": ("learnable_sink_init",),
    "hy_v4_vl_text": ("learnable_sink_init",),
    "led": ("attention_window",),
    "longt5": ("local_radius", "encoder_attention_type", "global_block_size"),
    "pegasus_x": ("num_global_tokens", "stagger_local_blocks", "block_size"),
    "reformer": ("attn_layers", "local_attn_chunk_length", "lsh_attn_chunk_length",
                 "local_num_chunks_before", "lsh_num_chunks_before", "hash_seed", "num_hashes"),
    "speecht5": ("conv_dim", "conv_kernel", "conv_stride", "num_conv_pos_embeddings",
                 "num_conv_pos_embedding_groups", "num_feat_extract_layers"),
    "seamless_m4t": ("num_conv_pos_embeddings", "num_conv_pos_embedding_groups",
                     "conv_depthwise_kernel_size"),
    "seamless_m4t_v2": ("conv_depthwise_kernel_size", "speech_encoder_left_chunk_num",
                        "speech_encoder_chunk_size"),
    "xlnet": ("attn_type",),
}  # fmt: skip
_OFF: tuple[Any, ...] = (None, False, 0, "", "none", [], {})


def refuse_unknown(reader: Reader) -> None:
    """Refuses the first field of an unknown type that says more than plain attention."""
    if reader.known:
        return
    for source in (reader.values, reader.defaults):
        for name, value in source.items():
            if name in reader.assume or name in _PLAIN or _is_plain_pattern(reader, name):
                continue
            if _matters(name, value) or (_SIGNS.search(name) and not _is_off(value)):
                raise reader.wrong(
                    name,
                    f"is {value!r:.60}, and what it means for {reader.model_type or 'this model'}"
                    ", a type that is not known, is not known either. Say what it works like with "
                    f"--assume model_type=TYPE, or --assume {name}=VALUE to read it as elsewhere",
                )


def _is_plain_pattern(reader: Reader, name: str) -> bool:
    """A list of full and sliding layers is what it says, and so is the window beside it."""
    if name in names.WINDOW and reader.values.get("use_sliding_window") is False:
        return True
    if name != "layer_types" and name not in names.WINDOW:
        return False
    called = reader.values.get("layer_types") or reader.defaults.get("layer_types")
    return isinstance(called, list | tuple) and all(
        isinstance(one, str) and names.KINDS.get(one) in _PLAIN_KINDS for one in called
    )


def refuse_unread(reader: Reader) -> None:
    """Refuses the first key of the text model that was not understood."""
    for name, value in reader.values.items():
        if reader.where + name in reader.used or name in reader.assume:
            continue
        if _matters(name, value) and name not in _HARMLESS_IN.get(reader.model_type, ()):
            raise reader.wrong(
                name,
                "may change what the model remembers, and is not understood. "
                f"If it changes nothing, say --assume {name}=ignored",
            )


def refuse_declared(reader: Reader) -> None:
    """The same for fields that the class has but the file does not state."""
    for name, value in reader.defaults.items():
        read = reader.where + name in reader.used or name in reader.values
        read = read or name in _HARMLESS_IN.get(reader.model_type, ())
        if not read and name not in reader.assume and _matters(name, value):
            raise reader.wrong(
                name,
                f"is {value!r} by the class of {reader.model_type}, may change what the "
                f"model remembers, and is not understood. Else say --assume {name}=ignored",
            )


def _is_off(value: Any) -> bool:
    return any(value is off or (type(value) is type(off) and value == off) for off in _OFF)


def _matters(name: str, value: Any) -> bool:
    if _is_off(value):
        return False
    if isinstance(value, Mapping) and not _SMELLS.search(name):
        return False
    return bool(_SMELLS.search(name)) and not _HARMLESS.search(name)
