"""Parameters of published models, counted from their configs, against transformers' own classes.

`parameters` in models.json is what the class holds on the meta device. The slow test does the same
here for every class that generates text, at the sizes of its class defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from holdover.geometry.sizing.weights import count_weights

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "models.json").read_text())
BUILT = [model for model in MODELS if model["expected"]["parameters"]]
# Files that their source has trimmed of widths, which class defaults of another size do not give.
WITHOUT_WIDTHS = {
    "HuggingFaceTB__SmolVLM-Instruct", "LGAI-EXAONE__EXAONE-4.0-32B", "LiquidAI__LFM2-8B-A1B",
    "allenai__Olmo-3.1-32B-Instruct", "google__gemma-4-E4B-it", "google__gemma-3n-E2B-it",
    "mistralai__Devstral-2-123B-Instruct-2512", "Qwen__Qwen3.5-9B", "Zyphra__Zamba2-2.7B",
}  # fmt: skip
# A tower that a file does not describe is the class's default one: named, and counted here.
UNDESCRIBED = {"meta-llama__Llama-4-Scout-17B-16E-Instruct": 455_178_240,
               "stepfun-ai__Step-3.7-Flash": 1_981_014_784}  # fmt: skip


@pytest.mark.parametrize("model", BUILT, ids=lambda model: str(model["model"]))
def test_the_formula_is_within_one_percent_of_the_class(model: dict[str, Any]) -> None:
    found = count_weights(model["config"])
    if model["model"] in WITHOUT_WIDTHS:
        assert found is None
        return
    assert found is not None
    tower = UNDESCRIBED.get(model["model"], 0)
    assert bool(found.missing) == bool(tower)
    built = model["expected"]["parameters"] - tower
    assert found.parameters.count == pytest.approx(built, rel=0.01)


def test_most_models_are_compared() -> None:
    assert len(BUILT) >= 110
    assert sum(model["model"] in WITHOUT_WIDTHS for model in BUILT) <= len(WITHOUT_WIDTHS)


_TASKS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM")


@pytest.mark.slow
@pytest.mark.parametrize("task", _TASKS)
def test_no_class_that_generates_text_is_counted_wrong(task: str) -> None:
    """At default sizes; a class that cannot be built without more is left out."""
    names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
    mapping = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING")
    counted, wrong = 0, []
    # The causal class of Mllama is its text model alone, whose config has the tower's beside it.
    for model_type in set(names) - {"mllama"}:
        try:
            config = CONFIG_MAPPING[model_type]()
            with torch.device("meta"):
                model = mapping[type(config)](config)
            model.tie_weights()
        except Exception:  # needs values that are not the class's, or a package
            continue
        fields = json.loads(json.dumps(config.to_dict(), default=str))
        found = count_weights(fields | {"architectures": [type(model).__name__]})
        if found is None or found.missing:
            continue
        counted += 1
        built = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
        if found.parameters.count != pytest.approx(built, rel=0.01):
            wrong.append((model_type, built, found.parameters.count))
    assert not wrong
    assert counted > (100 if task == "CAUSAL_LM" else 10)
