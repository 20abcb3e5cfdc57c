"""Parameters of a config's model as transformers builds it, on the meta device: no weights."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from typing import Any

# Types of their own repositories' code whose configs have the fields of a transformers class.
_SAME_FIELDS = {"kimi_k2": "deepseek_v3"}
_TASKS = (
    "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ",
)  # fmt: skip


def count_on_meta(config: Mapping[str, Any]) -> int | None:
    """All parameters, tied ones once; None where transformers has no class for the config, or the
    class refuses it."""
    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    model_class, made = _class_of(config)
    if model_class is None:
        return None
    try:
        with torch.device("meta"):
            model = model_class(made)
        model.tie_weights()
    except Exception as error:  # whatever one of hundreds of classes raises; it is shown
        print(f"{config.get('model_type')}: {type(error).__name__}: {str(error)[:120]!r}")
        return None
    return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())


def _class_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    import transformers

    fields = copy.deepcopy(dict(config))
    for name in ("quantization_config", "auto_map"):
        fields.pop(name, None)
    own = str(fields.get("model_type"))
    known = _SAME_FIELDS.get(own, own)
    if known not in transformers.CONFIG_MAPPING:
        return None, None
    try:
        made = transformers.CONFIG_MAPPING[known].from_dict(fields | {"model_type": known})
    except Exception as error:
        print(f"{own}: {type(error).__name__}: {str(error)[:120]!r}")
        return None, None
    named = fields.get("architectures") or [None]
    if named[0] and known == own and hasattr(transformers, named[0]):
        return getattr(transformers, named[0]), made
    for task in _TASKS:
        mapping = getattr(transformers, f"MODEL_FOR_{task}_MAPPING", {})
        if type(made) in mapping:
            return mapping[type(made)], made
    return None, None
