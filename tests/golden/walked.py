"""The architectures that the walk compares, and the few that stand for each mechanism.

A type that a newer transformers brings is in neither list, and fails the test until it is added.
"""

from __future__ import annotations

WALKED: tuple[str, ...] = (
    "afmoe", "apertus", "apertus1p5", "apertus1p5_text", "arcee", "aria", "aria_text",
    "audioflamingo3", "axk1", "axk2", "aya_vision", "bailing_hybrid", "bamba", "bart", "beam",
    "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet", "blenderbot",
    "blenderbot-small", "blip", "blip-2", "bloom", "camembert", "canary", "chameleon",
    "codegen", "cohere", "cohere2", "cohere2_moe", "cohere2_vision", "cohere_asr",
    "cohere_compass", "cohere_compass_text", "cosmos3_edge", "cosmos3_omni", "cpmant", "ctrl",
    "cwm", "data2vec-text", "dbrx", "deepseek_ocr2", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "deepseek_v4", "deepseek_vl", "deepseek_vl_hybrid", "dia", "diffllama",
    "diffusion_gemma", "doge", "dory", "dots1", "dots3_note", "dots3_note_text", "electra",
    "emu3", "encoder-decoder", "ernie", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe", "evolla",
    "exaone", "exaone4", "exaone4_5", "exaone_moe", "falcon", "falcon_h1", "falcon_mamba",
    "fast_vlm", "flex_olmo", "flint", "florence2", "fsmt", "fun_asr_nano", "fuyu", "gemma",
    "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
    "gemma4_unified", "gemma4_unified_text", "git", "glm", "glm4", "glm46v", "glm4_moe",
    "glm4_moe_lite", "glm4v", "glm4v_moe", "glm5_next", "glm_moe_dsa", "glm_ocr", "glmasr",
    "glmga", "got_ocr2", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox",
    "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granite4_vision", "granite_docling",
    "granite_speech", "granite_speech_plus", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoehybrid", "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hunyuan_vl", "hy_v3", "hy_v4", "hy_v4_vl", "hyperclovax",
    "hyperclovax_vision_v2", "idefics2", "idefics3", "inkling2", "inkling2_loop",
    "inkling2_loop_text", "inkling2_text", "inkling_mm_model", "inkling_text", "instructblip",
    "instructblipvideo", "internlm3", "internvl", "iquestcoder", "jais2", "jamba", "janus",
    "jetmoe", "kimi_k25", "kimi_linear", "kolibri1", "kosmos-2", "kosmos-2.5",
    "kyutai_speech_to_text", "laguna", "lara_mini", "led", "lfm2", "lfm2_moe", "lfm2_vl",
    "lfm3", "lfm3_vl", "lighton_ocr", "llama", "llama4", "llama4_text", "llava", "llava_next",
    "llava_next_video", "llava_onevision", "longcat_flash", "longt5", "m2m_100", "mamba",
    "mamba2", "marian", "mbart", "megatron-bert", "mellum", "mimo_v2_flash", "minicpm3",
    "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "minimax", "minimax_m2", "minimax_m3_vl",
    "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mistral3", "mistral4",
    "mistral_large4", "mixtral", "mllama", "modernbert-decoder", "molmo2", "moonshine",
    "moonshine_streaming", "moshi", "moss_transcribe_diarize", "mpt", "mt5", "muse_glimmer",
    "muse_spark", "musicflamingo", "musicgen", "musicgen_melody", "mvp", "nanochat",
    "nemo_speechlm", "nemotron", "nemotron_h", "nemotron_h_omni", "nllb-moe", "olmo", "olmo2",
    "olmo3", "olmo_hybrid", "olmoe", "omniasr", "openai-gpt", "opt", "ovis2", "paddleocr_vl",
    "paligemma", "pegasus", "pegasus_x", "perception_lm", "persimmon", "phi", "phi3",
    "phi4_multimodal", "phimoe", "pix2struct", "plbart", "pop2piano", "pp_chart2table",
    "pp_formulanet", "prophetnet", "qianfan_ocr", "qwen2", "qwen2_5_omni",
    "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_audio", "qwen2_moe", "qwen2_vl", "qwen3",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_asr", "qwen3_moe",
    "qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe",
    "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "reformer", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "rwkv", "sarvam_mla", "sarvam_moe",
    "seamless_m4t", "seamless_m4t_v2", "seed_oss", "shieldgemma2", "smollm3", "smolvlm",
    "solar_open", "speech-encoder-decoder", "speech_to_text", "speecht5", "stablelm",
    "starcoder2", "step3p7", "switch_transformers", "t5", "t5gemma", "t5gemma2", "trocr",
    "udop", "umt5", "unlimited_ocr", "vaultgemma", "vibevoice", "vibevoice_asr",
    "video_llama_3", "video_llava", "vipllava", "vision-encoder-decoder", "voxtral",
    "voxtral_realtime", "whisper", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet",
    "xlstm", "xmod", "youtu", "zamba", "zamba2", "zaya",
)  # fmt: skip

# Each mechanism once: what `make test` runs.
FAST: frozenset[str] = frozenset((
    "llama", "gpt2", "gemma3_text", "gemma3n_text", "llama4_text", "deepseek_v3", "deepseek_v32",
    "deepseek_v4", "minimax_m3_vl_text+sparse", "minimax", "mamba", "mamba2", "jamba",
    "falcon_h1", "qwen3_next",
    "kimi_linear", "recurrent_gemma", "lfm2_moe", "rwkv", "xlstm", "zamba2", "zaya", "mllama",
    "bart", "hrm_text", "longcat_flash", "t5gemma", "qwen2+window",
))  # fmt: skip
