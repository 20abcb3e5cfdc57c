"""Class defaults of a model type that the table does not know, from the installed transformers.

Only here does sizing import transformers, and only for such a type: it takes seconds. What counts
as a default worth knowing is said here for the table too, which tools/make_defaults.py writes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry._defaults import ClassDefaults

# Names that can change what a model remembers, or how many parameters it has.
RELEVANT = re.compile(
    r"head|layer|window|kv|d_k|rank|conv|state|mamba|ssm|lru|linear|index|compress|chunk|pattern"
    r"|period|offset|block|position|n_ctx|seq_len|context|expert|vocab|intermediate|hidden_size"
    r"|hidden_dim|inner|latent|dim$|d_model|d_ff|ffn|n_embd|tie_|is_decoder|is_encoder_decoder"
    r"|expand|width|group|share|cross|multi_query|interval|freq|mtp|attn_type|attention_type"
    r"|attention_chunk|dt_rank|use_mamba|use_cache|query_tokens|image_size|patch_size|source_pos"
    r"|use_sliding|attention_k_eq_v|mlp_only|sparse|moe|glu|is_gated|feed_forward_proj|qkv_bias"
    r"|attention_bias|mlp_bias|use_bias|use_dsa|dtype|new_decoder|alibi|full_attn|parallel_attn"
    r"|first_k|loop|_cycles|prompt_length|cca_time|mem_len|hc_count|ngram_size|dff$|dim_ff|emb_dim|_dim_factor|proj_factor|local_attention"
)
IRRELEVANT = re.compile(
    r"dropout|drop|loss|coef|_std$|eps|epsilon|token_id|token_index|theta|jitter|_act$|activation"
    r"|hidden_states|attn_implementation|label|initializ|init_|return_dict|chunk_size_feed_forward"
    r"|^dtype$|use_cache|mask_|_kernels$|deepstack|image_grid|vision_feature|projector|tdnn|xvector"
    r"|aux_loss|router_z|feature_layer|scale_embedding|summary|layer_norm|layernorm"
)


def installed_defaults(
    model_type: str, values: Mapping[str, Any], where: str
) -> ClassDefaults | None:
    """What the class of `model_type` makes of a file's values: derived ones are worked out too.

    None where transformers is not installed or knows no such type. Raises ConfigError where its
    class refuses the values.
    """
    config_class = _config_class(model_type)
    if config_class is None:
        return None
    try:
        made = config_class.from_dict(copy.deepcopy(dict(values))).to_dict()
    except Exception as error:  # whatever a class raises at a value; it is passed on, not swallowed
        cause = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ConfigError(
            f"{where}model_type", f"transformers' class of {model_type} refuses the file: {cause}"
        ) from error
    found = {name: value for name, value in made.items() if is_relevant(name, value)}
    return ClassDefaults(found, getattr(config_class, "attribute_map", {}), {}, frozenset())


def installed_version() -> str:
    from importlib.metadata import version

    return version("transformers")


def _config_class(model_type: str) -> Any:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    known = model_type in CONFIG_MAPPING  # its `get` does not find classes that load on demand
    return CONFIG_MAPPING[model_type] if known else None


def is_relevant(name: str, value: object) -> bool:
    if not RELEVANT.search(name) or IRRELEVANT.search(name) or name.endswith("_config"):
        return False
    if isinstance(value, float):
        return re.search("expand|ratio|_dim_factor|proj_factor", name) is not None
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (int, str)) for item in value)
    return value is None or isinstance(value, (int, str))
