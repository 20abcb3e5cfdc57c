"""The cache that each architecture of transformers fills holds the bytes that the planner says.

A small random model of every type generates a few tokens past its window, its cache object is
walked, and each layer's bytes of each kind are compared, exactly, with `read_memory` on the same
config: as the class writes it in full, as it is published (without class defaults), and as stated
by hand. Where transformers stores something else, `transformers_differences` says what.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers.models.auto import modeling_auto

from holdover.geometry.sizing import read_memory

from .cache_compare import cached_bytes, planned_bytes
from .tiny_fields import VARIANTS
from .tiny_models import ENCODER_TOKENS, filled_cache, stated, text_of, tiny_config
from .transformers_differences import DIFFERENCES, NOT_WALKED
from .walked import FAST, WALKED

# As long as what `filled_cache` gives the model to look at.
_SEEN = {"encoder_tokens": str(ENCODER_TOKENS), "image_tokens": str(ENCODER_TOKENS)}
_MAPPINGS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ",
)  # fmt: skip


def installed() -> set[str]:
    """The model types of every class in transformers that generates text."""
    return {
        model_type
        for mapping in _MAPPINGS
        for model_type in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
    }


def _present(names: tuple[str, ...]) -> list[Any]:
    """Those that this transformers has; all but the fast ones are slow."""
    known = installed()
    marks = {True: (), False: (pytest.mark.slow,)}
    return [
        pytest.param(name, marks=marks[name in FAST])
        for name in names
        if name.split("+")[0] in known
    ]


pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_architecture_is_walked_or_listed() -> None:
    assert installed() - set(WALKED) - set(NOT_WALKED) == set()


def test_the_lists_name_each_architecture_once() -> None:
    assert not set(WALKED) & set(NOT_WALKED)
    assert set(DIFFERENCES) <= {*WALKED, *VARIANTS}
    assert all(name.split("+")[0] in WALKED for name in VARIANTS)
    assert set(FAST) <= {*WALKED, *VARIANTS}


@pytest.mark.parametrize("name", _present((*WALKED, *VARIANTS)))
def test_the_cache_of_a_small_model_holds_what_is_planned(name: str) -> None:
    config = tiny_config(name)
    cache, n_tokens = filled_cache(config)
    found = cached_bytes(cache, getattr(text_of(config), "cross_attention_layers", None) or ())
    forms = {
        "written in full": _plain(config.to_dict()),
        "published": _plain(config.to_diff_dict()),
        "stated by hand": stated(name),
    }
    for form, fields in forms.items():
        memories = read_memory(fields, assume=_SEEN).memories
        planned = planned_bytes(memories, n_tokens)
        if (difference := DIFFERENCES.get(name)) is not None:
            assert planned != found, f"{name} is listed as different, and is not"
            planned = planned_bytes(difference.stores(memories, text_of(config)), n_tokens)
        assert planned == found, f"{name}, {form}"


def _plain(fields: Any) -> dict[str, Any]:
    """As a config.json would hold it."""
    plain: dict[str, Any] = json.loads(json.dumps(fields, default=str))
    return plain
