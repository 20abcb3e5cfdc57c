"""Writes the built-in catalogue of well-known models.

    python tools/make_catalogue.py FOLDER [--check]

FOLDER holds config.json files named organisation__model.json. `catalogue_models.tsv` beside this
script is the input: names, the parameter counts with where they are from, and as `source` either
such a file's name or the few published config values themselves. What is written is what
`read_memory` makes of them, in the catalogue's own form; no config file goes into the package.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import generated

from holdover.geometry.sizing import read_memory
from holdover.geometry.sizing.catalogue import pack_memory
from holdover.geometry.sizing.weights import ModelWeights, count_weights, form_of

MODELS = Path(__file__).with_name("catalogue_models.tsv")
TABLE = Path(__file__).parent.parent / "src/holdover/geometry/sizing/catalogue.json"


def make_table(folder: Path) -> dict[str, dict[str, Any]]:
    with MODELS.open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        assert row["name"] not in table, f"{row['name']} is there twice"
        table[row["name"]] = _entry(row, folder)
    return table


def table_text(table: Mapping[str, Any]) -> str:
    """One line per model, so that a change shows in a diff."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}"
        for name, entry in table.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(row: Mapping[str, str], folder: Path) -> dict[str, Any]:
    source = row["source"]
    config = json.loads(source if source[0] == "{" else (folder / f"{source}.json").read_text())
    memory, mtp = read_memory(config), read_memory(config, mtp=True)
    counted = count_weights(_with_fields(config, row["fields"]))
    count = int(row["parameters"])
    entry = {
        "repository": row["repository"],
        "aliases": [alias.strip() for alias in row["aliases"].split(";") if alias.strip()],
        "parameters": [count, _active(row, counted)],
        **_weights(row, config, memory.stored_dtype, counted),
        **pack_memory(memory, mtp),
        "provenance": row["provenance"],
    }
    return {name: value for name, value in entry.items() if value not in (None, [], 0)}


def _with_fields(config: Mapping[str, Any], fields: str) -> dict[str, Any]:
    """The config with further fields in its text part."""
    more = json.loads(fields or "{}")
    if "text_config" in config:
        return {**config, "text_config": {**config["text_config"], **more}}
    return {**config, **more}


def _active(row: Mapping[str, str], counted: ModelWeights | None) -> int:
    """What one token's step reads, by the formula."""
    count = int(row["parameters"])
    if counted is None:
        print(f"{row['name']}: no formula for what a token reads", file=sys.stderr)
        return int(row["active"])
    formula = counted.parameters
    if abs(formula.count - count) > 0.02 * count:
        print(f"{row['name']}: {count}, but {formula.count} by the formula", file=sys.stderr)
    return min(count, formula.active)


def _weights(
    row: Mapping[str, str],
    config: Mapping[str, Any],
    dtype: str | None,
    counted: ModelWeights | None,
) -> dict[str, Any]:
    """Bytes of published weights that are not in 16 bits: all, and those a token reads."""
    if row["quantization"]:
        said = row["quantization"]
        config = {"quantization_config": None if said == "none" else json.loads(said)}
    form = form_of(config, dtype)
    if form is None or not form.is_quantised or counted is None:
        return {}
    n_bytes, active_bytes = form.n_bytes(counted)
    return {
        "weights_format": form.name,
        "weights_parts": form.text(counted),
        "checkpoint_bytes": int(row["checkpoint_bytes"] or n_bytes),
        "active_bytes": active_bytes,
    }


def _text_of(folder: Path) -> str:
    return table_text(make_table(folder))


if __name__ == "__main__":
    what = "config files named organisation__model.json"
    sys.exit(generated.main(Path(__file__).name, __doc__.splitlines()[0], TABLE, _text_of, what))
