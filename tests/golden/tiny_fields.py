"""Sizes of the small models: by field name, and what single config classes need beyond it.

The numbers of one model differ from each other wherever a class allows it, so that a reading that
takes one for another is seen: 4 heads of 24 on a width of 64, 2 KV heads, a window of 8.
"""

from __future__ import annotations

from typing import Any

WINDOW_TOKENS = 8
N_LAYERS = 7

SMALL: dict[str, int] = {
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "decoder_layers",
            "num_decoder_layers",
            "decoder_num_hidden_layers",
            "num_text_layers",
        ),
        N_LAYERS,
    ),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "encoder_num_hidden_layers"), 2),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "dim_model"),
        64,
    ),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "dim_model"), 64
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "n_inner",
            "ffn_hidden_size",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "d_ff",
            "dff",
            "expert_ffn_hidden_size",
            "mlp_dim",
            "moe_shared_expert_intermediate_size",
            "intermediate_size_mlp",
            "dense_intermediate_size",
            "decoder_intermediate_size",
            "encoder_intermediate_size",
            "dim_ff",
        ),
        48,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "decoder_attention_heads",
            "encoder_attention_heads",
            "decoder_num_attention_heads",
            "encoder_num_attention_heads",
            "swa_num_attention_heads",
            "num_decoder_attention_heads",
            "num_encoder_attention_heads",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            "swa_num_key_value_heads",
            "decoder_num_key_value_heads",
            "encoder_num_key_value_heads",
        ),
        2,
    ),
    **dict.fromkeys(("head_dim", "d_kv", "swa_head_dim"), 24),
    **dict.fromkeys(("v_head_dim", "swa_v_head_dim"), 20),
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "q_lora_rank": 28,
    "kv_lora_rank": 36,
    "o_lora_rank": 16,
    "vocab_size": 96,
    "type_vocab_size": 2,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "sep_token_id": 2,
    "forced_eos_token_id": 2,
    **dict.fromkeys(
        ("sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size"),
        WINDOW_TOKENS,
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "top_k_experts",
         "topk_group", "n_group"), 1
    ),
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_head_dim": 12, "linear_num_heads": 4, "mamba_chunk_size": 16,
    "index_head_dim": 10, "index_n_heads": 3, "index_topk": 6,
    "mamba_d_state": 6, "state_size": 6, "ssm_state_size": 6,
}  # fmt: skip

# An encoder or a tower of which nothing is compared.
_TOWER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48}  # fmt: skip
_DECODER = {"is_decoder": True}
_MLA: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": ...}


def _rope(*sections: int, **more: Any) -> dict[str, Any]:
    """Rotary positions of an image's three axes."""
    axes = {"mrope_section": list(sections)} if sections else {}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **axes, **more}}


# `...` takes a field away from what the rule above gives.
OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _rope(4, 2, 2)["rope_parameters"]},
    },
    "git": {"vision_config": {**_TOWER, "image_size": 32}},
    "longcat_flash": {"zero_expert_num": 2, "moe_topk": 2, "num_key_value_heads": 4, "head_dim": 8},
    "phi4_multimodal": {
        "vision_config": {**_TOWER, "image_size": 28, "crop_size": 28},
        "audio_config": {"hidden_size": 64, "num_blocks": 2, "num_attention_heads": 4,
                         "intermediate_size": 48, "ext_pw_out_channel": 64,
                         "nemo_conv_channels": 16},
    },
    **dict.fromkeys(
        ("axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "sarvam_mla", "youtu",
         "glm4_moe_lite", "deepseek_v2", "hy_v4", "minicpm3"),
        _MLA,
    ),
    "bailing_hybrid": {**_MLA, "n_group": 1},
    "bamba": {"attn_layer_indices": [2, 5], "mamba_n_heads": 4, "mamba_n_groups": 2},
    "codegen": {"rotary_dim": 8},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 48, "moe_num_experts": 4},
    },
    "dory": {"n_input_layers": 2, "n_output_layers": 2, "num_hidden_layers": 8},
    "dots1": {"n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "head_dim": 20,
        "n_shared_experts": 1,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 28,
        "swa_kv_lora_rank": 44,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 10,
        "swa_v_head_dim": 14,
        "sliding_window": 8,
    },
    "gemma3n_text": {
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 5,
        "intermediate_size": [48] * 12,
        "activation_sparsity_pattern": [0.0] * 12,
    },
    "gpt_neo": {"num_layers": 6, "attention_types": [[["global", "local"], 3]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {
        "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba"],
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
    },
    "helium": {"head_dim": 16},
    "inkling2_text": {"unpadded_vocab_size": 96},
    "inkling2_loop_text": {
        "unpadded_vocab_size": 96,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
        "n_layers_per_attn_res_block": 2,
    },
    "prophetnet": {"num_encoder_layers": 7},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "zamba": {"num_hidden_layers": 9},
    "musicgen": {"decoder": {"num_codebooks": 2}},
    "musicgen_melody": {"decoder": {"num_codebooks": 2}},
    "encoder-decoder": {
        "encoder": {"model_type": "bert", **_TOWER, "vocab_size": 96},
        "decoder": {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 7,
                    "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 96,
                    "is_decoder": True, "add_cross_attention": True},
        "decoder_start_token_id": 1, "pad_token_id": 0,
    },
    "plbart": {"decoder_start_token_id": 1},
    "longt5": {"decoder_start_token_id": 1},
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit", **_TOWER, "image_size": 32},
        "decoder": {"model_type": "gpt2", "n_embd": 64, "n_layer": 7, "n_head": 4,
                    "vocab_size": 96, "add_cross_attention": True},
        "decoder_start_token_id": 1, "pad_token_id": 0,
    },
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2", **_TOWER, "conv_dim": [16],
                    "conv_stride": [2], "conv_kernel": [4], "num_feat_extract_layers": 1,
                    "num_conv_pos_embedding_groups": 4},
        "decoder": {"model_type": "bart", "d_model": 64, "decoder_layers": 7, "encoder_layers": 7,
                    "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "vocab_size": 96,
                    "is_decoder": True, "add_cross_attention": True},
        "decoder_start_token_id": 1, "pad_token_id": 0,
    },
    "kimi_linear": {
        "linear_head_dim": 12,
        "linear_num_heads": 4,
        "num_key_value_heads": 4,
    },
    "lfm2_moe": {
        "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention"],
    },
    "mllama_text_model": {"cross_attention_layers": [3]},
    "deepseek_v4": {"num_key_value_heads": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 28,
        "indexer_budget": 8, "indexer_compress_ratio": 4, "hc_lowrank": 8,
        "ple_layer_ids": [2], "ple_embed_dim": 16, "ngram_vocab_size_base": 100,
        "split_ngram_parts": 4,
    },
    "qwen3_vl_moe_text": {"sliding_window": ...},
    "reformer": {"is_decoder": True, "num_hidden_layers": 6,
                 "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
                 "feed_forward_size": 48, "attention_head_size": 16,
                 "attn_layers": ["local"] * 6, "axial_pos_embds_dim": [16, 48],
                 "axial_pos_shape": [4, 8], "max_position_embeddings": 32},
    "roc_bert": {"shape_vocab_size": 30, "shape_embed_dim": 16, "pronunciation_vocab_size": 30,
                 "pronunciation_embed_dim": 16},
    "xlnet": {"d_inner": 48, "mem_len": 512},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
    },
    **dict.fromkeys(
        ("glm4v_text", "glm46v_text", "glm_ocr_text", "qwen2_vl_text", "qwen2_5_vl_text",
         "qwen2_5_omni_text"),
        _rope(2, 3, 3),
    ),
    "chameleon": {
        "vocabulary_map": {"<image>": 4},
        "vq_config": {
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "embed_dim": 16,
            "latent_channels": 16,
            "num_embeddings": 20,
        },
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 7, "head_dim": 16},
    "ernie4_5_vl_moe_text": _rope(3, 3, 2),
    "paddleocr_vl_text": _rope(4, 4, 4),
    "kosmos_2_text_model": {"embed_dim": 64, "layers": 7, "attention_heads": 4},
    "kosmos_2_5_text_model": {"embed_dim": 64, "layers": 7, "attention_heads": 4},
    "qwen3_omni_moe_text": _rope(4, 4, 4),
    "t5gemma2_encoder": {"vision_config": {
        **_TOWER, "image_size": 28}},
    "florence_vision": {
        "embed_dim": [16],
        "num_heads": [4],
        "num_groups": [4],
        "depths": [1],
        "patch_size": [7],
        "patch_stride": [4],
        "patch_padding": [3],
        "patch_prenorm": [False],
        "projection_dim": 64,
    },
    "pix2struct_text_model": {"d_kv": 16},
    "moonshine": {"decoder_num_key_value_heads": 4, "encoder_num_key_value_heads": 4},
    "dia_decoder": {"cross_hidden_size": 64, "cross_num_attention_heads": 4,
                    "cross_num_key_value_heads": 4, "cross_head_dim": 16},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "unlimited_ocr_text": {"head_dim": 16},
    "dots3_note_vision": {"adapter_out_dim": 64},
    "glm4v_moe_text": _rope(1, 1, 2, partial_rotary_factor=0.5),
    "cosmos3_edge_text": _rope(4, 4, 4),
    "hunyuan_vl_text": _rope(4, 4, 4),
    "hy_v4_vl_text": {**_MLA, **_rope(2, 1, 1)},
    "glm5_next_text": {**_MLA, "index_topk": 16, "qk_rope_head_dim": 0},
    "mistral4": {
        "num_key_value_heads": 4, "head_dim": 8,
        **_rope(llama_4_scaling_beta=0.1, original_max_position_embeddings=8192),
    },
    "mistral_large4_text": _MLA,
    "granite_docling": {"vision_config": {"out_hidden_size": 64}},
    "inkling2": {"vision_config": {"text_hidden_size": 64}},
    "inkling2_loop": {"vision_config": {"text_hidden_size": 64}},
    "muse_spark": {"audio_config": {"out_hidden_size": 64}},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 64, "intermediate_size": 16}},
    "dots3_note": {
        "vision_config": {"adapter_out_dim": 64},
        "audio_config": {"adapter_out_dim": 64},
    },
    "apertus1p5": {
        "image_token_offset": 10,
        "audio_token_offset": 30,
        "vision_config": {"codebook_size": 20},
        "audio_config": {"codebook_size": 20},
    },
    "kyutai_speech_to_text": {
        "pad_token_id": 0,
        "codebook_vocab_size": 96,
        "num_codebooks": 2,
        "audio_pad_token_id": 1,
        "audio_bos_token_id": 2,
    },
    "nemotron_h": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "layers_block_type": ["mamba", "moe", "attention", "mamba", "mlp", "attention", "mamba"],
    },
    "evolla": {
        "protein_encoder_config": {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "vocab_size": 96,
        }
    },
    "kyutai_speech_to_text": {"pad_token_id": 0, "codebook_vocab_size": 96, "num_codebooks": 2,
                              "audio_pad_token_id": 1, "audio_bos_token_id": 2},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2,
                   "layers_block_type": ["mamba", "moe", "attention", "mamba", "mlp", "attention",
                                         "mamba"]},
    "evolla": {"protein_encoder_config": {
        **_TOWER, "vocab_size": 96}},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16,
                  "mamba_n_groups": 2},
    "fsmt": {"src_vocab_size": 96, "tgt_vocab_size": 96},
    **dict.fromkeys(
        ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
         "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta",
         "xlm-roberta-xl"),
        _DECODER,
    ),
}  # fmt: skip

# Mechanisms that a class's defaults leave off: type + name -> fields.
VARIANTS: dict[str, dict[str, Any]] = {
    "dory+last_loop": {"recurrent_kv_cache_mode": "last_loop"},
    "falcon+groups": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon+heads": {"multi_query": False, "num_kv_heads": 4},
    "gemma4_text+wide": {"attention_k_eq_v": True, "num_global_key_value_heads": 1,
                         "global_head_dim": 32},
    "glm_moe_dsa+shared": {"indexer_types": ["full", "full", "shared", "full", "shared", "shared",
                                             "full"]},
    "gpt_bigcode+heads": {"multi_query": False},
    "minimax_m3_vl_text+sparse": {
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"] * 2
        + ["full_attention"],
        "index_n_heads": 2,
    },
    "mistral+full": {"sliding_window": None},
    "qwen2+window": {"use_sliding_window": True, "max_window_layers": 3},
    "smollm3+window": {"use_sliding_window": True},
}  # fmt: skip
