"""Small random models of every architecture in transformers, and the cache that each fills.

`stated` gives the fields of a small config by one rule for all config classes: widths, heads,
layers, experts and vocabularies shrink by name; whatever a class needs beyond it is in `OWN`.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from .tiny_fields import OWN, SMALL, VARIANTS

PROMPT_TOKENS = 20
NEW_TOKENS = 4
ENCODER_TOKENS = 11
STEPPED = (
    "musicgen",
    "musicgen_melody",
    "mllama",
    "pop2piano",
    "voxtral_realtime",
    "kyutai_speech_to_text",
    "dia",
    "dots3_note",
    "dots3_note_text",
)  # whose `generate` wants more than a prompt
CODED = "+"  # "qwen2+window" is the type qwen2 with the fields of the variant


def stated(name: str) -> dict[str, Any]:
    """The fields that a small config.json of this type, or variant of a type, would state."""
    model_type = name.split(CODED)[0]
    fields = {"model_type": model_type, **_small(model_type), **VARIANTS.get(name, {})}
    return copy.deepcopy(fields)  # classes write into what they are given


def _small(model_type: str) -> dict[str, Any]:
    own = OWN.get(model_type, {})
    usual = CONFIG_MAPPING[model_type](**{k: v for k, v in own.items() if k in _NEEDED})
    return _shrunk(usual)


def _shrunk(usual: Any) -> dict[str, Any]:
    """The fields of `usual` that are smaller here. Of a wrapper only the text part shrinks, since
    only it is built, but of an encoder-decoder all of it.
    """
    own = OWN.get(usual.model_type, {})
    fields: dict[str, Any] = {}
    for name, value in usual.to_dict().items():
        part = vars(usual).get(name)
        if isinstance(part, PreTrainedConfig):
            if name in TEXT_PARTS or usual.is_encoder_decoder:
                fields[name] = {"model_type": part.model_type, **_shrunk(part)}
        elif name in SMALL and _is_count(value):
            fields[name] = SMALL[name]
    for name, value in own.items():
        if isinstance(value, Mapping) and isinstance(fields.get(name), Mapping):
            value = {**fields[name], **value}
        fields[name] = value
    return {name: value for name, value in fields.items() if value is not ...}


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


_NEEDED = ("encoder", "decoder")
TEXT_PARTS = (
    "text_config",
    "language_config",
    "llm_config",
    "thinker_config",
    "decoder",
    "decoder_config",
)


def tiny_config(name: str) -> Any:
    fields = stated(name)
    return CONFIG_MAPPING[fields.pop("model_type")](**fields)


def model_class(config: Any, text: Any) -> Any:
    """The class that generates text from `text`: for causal models where there is one."""
    if text is config and config.is_encoder_decoder:
        mappings = (
            MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
            MODEL_FOR_MULTIMODAL_LM_MAPPING,
        )  # fmt: skip
        return next(mapping[type(config)] for mapping in mappings if type(config) in mapping)
    if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]
    return _class_in_its_module(text)


def _class_in_its_module(text: Any) -> Any:
    """A text part that no auto class knows: the class of its module that is made from it."""
    module = type(text).__module__.replace(".configuration_", ".modeling_")
    made = [
        c for name in (module, f"{module}_text") if importlib.util.find_spec(name)
        for c in vars(importlib.import_module(name)).values()
        if isinstance(c, type) and issubclass(c, PreTrainedModel)
        and c.__module__ == name and c.config_class is type(text)
    ]  # fmt: skip
    for ending in ("ForCausalLM", "LMHeadModel", "TextModel", "Model"):
        for c in made:
            if c.__name__.endswith(ending) and not c.__name__.endswith("PreTrainedModel"):
                return c
    raise LookupError(f"no class for {text.model_type}")


def text_of(config: Any) -> Any:
    """The config of the part that generates text."""
    if config.model_type in ("musicgen", "musicgen_melody"):
        return config.decoder
    return config if config.is_encoder_decoder else config.get_text_config(decoder=True)


def filled_cache(config: Any, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Any, int]:
    """(the cache after a prompt and a few steps, tokens in it)"""
    torch.manual_seed(0)
    text = text_of(config)
    model = model_class(config, text)(text).eval()
    given = _given(config.model_type, text, prompt_tokens)
    with torch.no_grad():
        if hasattr(model, "generate") and config.model_type not in STEPPED:
            out = model.generate(
                **given, do_sample=False, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS,
                return_dict_in_generate=True, use_cache=True, num_beams=1,
            )  # fmt: skip
        else:
            if config.model_type == "granite4_vision":  # whose text model makes none of its own
                given["past_key_values"] = DynamicCache(config=text)
            out = _stepped(model, given)
    cache = cache_in(out)
    if config.model_type == "recurrent_gemma":
        cache = _with_states_of_modules(model, cache)
    return cache, prompt_tokens + NEW_TOKENS - 1


def _stepped(model: Any, given: Mapping[str, Any]) -> Any:
    """Output of the last of as many steps as `generate` makes."""
    out = model(**given, use_cache=True)
    text_ids = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    again = {k: v for k, v in given.items() if k in ("encoder_outputs", "t_cond")}
    for _ in range(NEW_TOKENS - 1):
        ids = given[text_ids]
        token = torch.randint(3, 90, (len(ids), 1, *ids.shape[2:]))
        cache = cache_in(out)
        out = model(**{text_ids: token}, past_key_values=cache, use_cache=True, **again)
    return out


def _with_states_of_modules(model: Any, cache: Any) -> Any:
    """RecurrentGemma keeps its states as attributes of its layers, not in the cache."""
    blocks = [layer.temporal_block for layer in model.model.layers]
    states = [
        SimpleNamespace(conv_states=[b.conv1d_state], recurrent_states=[b.rg_lru.recurrent_states])
        if hasattr(b, "rg_lru")
        else None
        for b in blocks
    ]
    return SimpleNamespace(cache=cache, layers=states)


def _given(model_type: str, text: Any, prompt_tokens: int) -> dict[str, Any]:
    """Inputs of the first step: a prompt, and what stands for an encoder's output or an image."""
    seen = torch.randn(1, ENCODER_TOKENS, 64)
    prompt = torch.randint(3, 90, (1, prompt_tokens))
    if model_type in ("musicgen", "musicgen_melody"):
        prompt = prompt.repeat(text.num_codebooks, 1)
        return {"input_ids": prompt, "encoder_hidden_states": seen}
    if model_type == "mllama":
        return {"input_ids": prompt, "cross_attention_states": seen}
    if model_type == "kyutai_speech_to_text":  # a text token beside its codebooks' tokens
        return {"input_ids": prompt[..., None].repeat(1, 1, text.num_codebooks + 1)}
    if model_type == "dia":
        prompt = prompt[..., None].repeat(1, 1, text.decoder_config.num_channels)
    if model_type == "voxtral_realtime":
        return {"input_ids": prompt, "t_cond": torch.randn(1, 1, 64)}
    if not text.is_encoder_decoder:
        return {"input_ids": prompt}
    prompt[0, 0] = start = getattr(text, "decoder_start_token_id", None) or 1
    output = EncoderOutput(seen)
    if model_type == "pp_formulanet":  # whose decoder reads the pooled output
        output = BaseModelOutputWithPooling(seen, seen)
    return {
        "encoder_outputs": output,
        "decoder_input_ids": prompt,
        **({} if model_type in STEPPED else {"decoder_start_token_id": start}),
    }


@dataclass
class EncoderOutput(BaseModelOutput):
    """With the fields that the outputs of single classes have beyond it."""

    router_logits: Any = None
    attention_mask: Any = None
    input_features: Any = None


_CACHES = ("past_key_values", "cache_params", "cache", "state", "mems", "past_buckets_states")


def cache_in(output: Any) -> Any:
    for name in _CACHES:
        if (cache := getattr(output, name, None)) is not None:
            return cache
    raise LookupError(f"no cache among {list(output)}")
