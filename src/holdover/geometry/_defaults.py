"""What a model type's class takes when the config file is silent; generated, see tools/.

The planner does not import transformers, which takes seconds. `values` are what the class declares
(null: nothing set); `derived` are the names among them that the class works out from others, so a
reader needs its rule and must not take the default as it stands. `parts` are the nested configs:
the model type of each where the file names none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """`aliases` maps a common name to the one that the class's own files use."""

    values: Mapping[str, Any]
    aliases: Mapping[str, str]
    parts: Mapping[str, Mapping[str, Any]]
    derived: frozenset[str]


def class_defaults(model_type: str) -> ClassDefaults | None:
    """Defaults of a model type; None where transformers knows no such type that keeps a cache."""
    entry = _table()["types"].get(model_type)
    if entry is None:
        return None
    return ClassDefaults(
        entry.get("values", {}),
        entry.get("aliases", {}),
        entry.get("parts", {}),
        frozenset(entry.get("derived", ())),
    )


def defaults_version() -> str:
    """The transformers that the table was made from."""
    return str(_table()["transformers"])


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("_defaults.json").read_text())
    return table
