"""Writes the built-in catalogue of well-known models.

    python tools/make_catalogue.py FOLDER [--check]

FOLDER holds config.json files named organisation__model.json. `catalogue_models.tsv` beside this
script is the input: names, the parameter counts with where they are from, and as `source` either
such a file's name or the few published config values themselves. What is written is what
`read_memory` makes of them, in the catalogue's own form; no config file goes into the package.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from holdover.geometry.sizing import read_memory
from holdover.geometry.sizing.catalogue import pack_memory

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
    counts = int(row["parameters"]), int(row["active"])
    _compare(row["name"], counts[0], memory.parameters)
    aliases = [alias.strip() for alias in row["aliases"].split(";") if alias.strip()]
    entry = {
        "repository": row["repository"],
        "aliases": aliases,
        "parameters": counts,
        "weights_format": _weights_format(config),
        "checkpoint_bytes": int(row["checkpoint_bytes"] or 0),
        **pack_memory(memory, mtp),
        "provenance": row["provenance"],
    }
    return {name: value for name, value in entry.items() if value not in (None, [], 0)}


def _weights_format(config: Mapping[str, Any]) -> str | None:
    method = (config.get("quantization_config") or {}).get("quant_method")
    return method if method in ("fp8", "mxfp4") else None


def _compare(name: str, count: int, formula: Any) -> None:
    if formula is not None and abs(formula.count - count) > 0.02 * count:
        print(f"{name}: {count} parameters, but {formula.count} by the formula", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="config files named organisation__model.json")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args()
    table = make_table(options.folder)
    text = table_text(table)
    if options.check:
        same = TABLE.exists() and TABLE.read_text() == text
        print("up to date" if same else f"{TABLE.name} differs: run tools/make_catalogue.py")
        return 0 if same else 1
    TABLE.write_text(text)
    print(f"{TABLE}: {len(text)} bytes, {len(table)} models")
    return 0


if __name__ == "__main__":
    sys.exit(main())
