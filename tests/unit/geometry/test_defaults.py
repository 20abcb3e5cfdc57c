"""The checked-in table of class defaults against the installed transformers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from holdover.geometry._defaults import class_defaults, defaults_version

TOOL = Path(__file__).parents[3] / "tools" / "make_defaults.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_defaults", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_the_installed_transformers_says(tool: ModuleType) -> None:
    """With another version than the table's, only what both have is compared, and that is said."""
    fresh = tool.make_table()
    checked_in = json.loads(tool.TABLE.read_text())
    if fresh["transformers"] == defaults_version():
        assert tool.TABLE.read_text() == tool.table_text(fresh)
        return
    print(
        f"transformers {fresh['transformers']}, table from {defaults_version()}: common keys only"
    )
    fresh = json.loads(tool.table_text(fresh))  # tuples as lists
    common = checked_in["types"].keys() & fresh["types"].keys()
    assert len(common) > 300
    differing = [
        (model_type, name)
        for model_type in sorted(common)
        for name, value in checked_in["types"][model_type].get("values", {}).items()
        if fresh["types"][model_type].get("values", {}).get(name, value) != value
    ]
    assert not differing


def test_what_published_files_leave_out() -> None:
    gemma = class_defaults("gemma3_text")
    assert gemma is not None
    assert gemma.values["sliding_window_pattern"] == 6  # not declared, taken from the file's extras
    assert gemma.values["num_key_value_heads"] == 4
    assert "layer_types" in gemma.derived

    llava = class_defaults("llava")
    assert llava is not None
    assert llava.parts["text_config"]["model_type"] == "llama"
    llama = class_defaults("llama")
    assert llama is not None
    assert llama.values["num_hidden_layers"] == 32
    # Unset in the class, and filled from another field: never a number of its own.
    assert llama.values["num_key_value_heads"] is None
    assert "num_key_value_heads" in llama.derived


def test_aliases_are_those_of_the_classes() -> None:
    mpt = class_defaults("mpt")
    assert mpt is not None
    assert mpt.aliases == {
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }


def test_an_unknown_type_is_none() -> None:
    assert class_defaults("no-such-model") is None
