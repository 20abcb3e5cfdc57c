"""Writes the class defaults that published config files leave out, for the planner to read.

    python tools/make_defaults.py [--check]

Source: the config classes of the installed transformers, every type of CONFIG_MAPPING that keeps a
cache or generates text, and the wrappers around one. A value is what the class declares, before
`__post_init__` derives others from it; what it derives is named, never given, because it depends
on the file.
Needs no network and no weights. The same transformers gives the same bytes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import logging
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import generated

from holdover.geometry._installed import IRRELEVANT, RELEVANT, is_relevant

TABLE = Path(__file__).parent.parent / "src/holdover/geometry/_defaults.json"

# Values that a class takes from the file without declaring them: kwargs.pop("name", value).
_UNDECLARED = re.compile(
    r"window|pattern|every_n|interval|head_dim|global_|first_k|freq|offset|nextn|num_hash"
)
# A class that has one of these builds a cache when it generates.
_CACHES = (
    "use_cache",
    "is_decoder",
    "num_key_value_heads",
    "state_size",
    "decoder_layers",
    "kv_n_heads",
)


def make_table() -> dict[str, Any]:
    """`types`: entry per model type; entries that only differ in name are still written out."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    classes = {name: CONFIG_MAPPING[name] for name in sorted(CONFIG_MAPPING_NAMES)}
    for config_class in list(classes.values()):  # parts that have no entry of their own
        for part in _parts_of(config_class).values():
            classes.setdefault(part["model_type"], part["class"])
    wanted = {
        name: c for name, c in sorted(classes.items())
        if name and (_keeps_cache(c) or name in CAUSAL)
    }  # fmt: skip
    return {
        "transformers": transformers.__version__,
        "types": {name: _entry(config_class, wanted) for name, config_class in wanted.items()},
    }


def table_text(table: Mapping[str, Any]) -> str:
    """One line per model type, so that a new transformers shows in a diff."""
    lines = (
        f" {json.dumps(name)}:{json.dumps(entry, separators=(',', ':'), sort_keys=True)}"
        for name, entry in sorted(table["types"].items())
    )
    head = f'{{"transformers":{json.dumps(table["transformers"])},"types":{{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def _entry(config_class: type, wanted: Mapping[str, type]) -> dict[str, Any]:
    declared = {**dict(_undeclared(config_class)), **dict(_declared(config_class))}
    values = {name: value for name, value in declared.items() if is_relevant(name, value)}
    parts = {
        key: {"model_type": part["model_type"], **part["values"]}
        for key, part in _parts_of(config_class).items()
        if part["model_type"] in wanted
    }
    aliases = {
        common: own
        for common, own in getattr(config_class, "attribute_map", {}).items()
        if (own in values or RELEVANT.search(common)) and not IRRELEVANT.search(common)
    }
    derived = sorted(_derived(config_class, values))
    entry = {"values": values, "aliases": aliases, "parts": parts, "derived": derived}
    return {name: part for name, part in entry.items() if part}


def _declared(config_class: type) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            yield field.name, field.default
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, field.default_factory()


@cache
def _undeclared(config_class: type) -> tuple[tuple[str, Any], ...]:
    found: dict[str, Any] = {}
    for ancestor in reversed(config_class.__mro__):
        method = ancestor.__dict__.get("__post_init__")
        if method is None or not ancestor.__module__.startswith("transformers.models"):
            continue
        for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method)))):
            if isinstance(call, ast.Call) and len(call.args) == 2:
                name, value = call.args
                if ast.unparse(call.func) not in ("kwargs.pop", "kwargs.get"):
                    continue
                constant = isinstance(name, ast.Constant) and isinstance(value, ast.Constant)
                if constant and _UNDECLARED.search(str(name.value)):
                    found[str(name.value)] = value.value
    return tuple(found.items())


def _parts_of(config_class: type) -> dict[str, dict[str, Any]]:
    """Nested configs: the type taken where the file names none, and values set beside it."""
    specs = getattr(config_class, "sub_configs_defaults", {})
    return {
        key: {
            "model_type": spec.model_type,
            "class": spec.config_class,
            "values": {k: v for k, v in spec.init_kwargs.items() if is_relevant(k, v)},
        }
        for key, spec in sorted(specs.items())
        if not re.match(r"vision|image|backbone", key)
    }


@cache
def _keeps_cache(config_class: type) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    if not dataclasses.is_dataclass(config_class):
        return False
    names = {field.name for field in dataclasses.fields(config_class)}
    if names.intersection(_CACHES):
        return True
    parts = _parts_of(config_class).values()
    return any(
        _keeps_cache(
            CONFIG_MAPPING[part["model_type"]]
            if part["model_type"] in CONFIG_MAPPING_NAMES
            else part["class"]
        )
        for part in parts
    )


def _derived(config_class: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Values that the class replaces when it is made without any."""
    try:
        made = config_class()
    except Exception:  # some classes demand values; then nothing is known to be derived
        return
    for name, value in values.items():
        now = made.__dict__.get(name, value)
        if now != value and not (isinstance(value, tuple) and list(value) == now):
            yield name


if __name__ == "__main__":
    sys.exit(
        generated.main(
            Path(__file__).name, __doc__.splitlines()[0], TABLE,
            lambda _: table_text(make_table()), None,
        )
    )  # fmt: skip
