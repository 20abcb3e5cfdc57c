"""Writes tests/golden/models.json: what published models remember, and the fields it follows from.

    python tools/make_golden.py FOLDER

FOLDER holds `configs/*.json` and `truth.tsv` (reference bytes per config, made independently of
this project). Of each complete config only the fields that sizing asked for are kept. `parameters`
is the count on transformers' own class, on the meta device, where it has one.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta_count import count_on_meta

from holdover.geometry.sizing._read import model_memory
from holdover.geometry.sizing.names import TEXT_PARTS
from holdover.geometry.sizing.unwrap import text_reader
from holdover.geometry.sizing.weights.towers import FIELDS as TOWER_FIELDS
from holdover.geometry.sizing.weights.whole import weights_of

TABLE = Path(__file__).parent.parent / "tests/golden/models.json"

_ALWAYS = ("model_type", "architectures", "tie_word_embeddings")
# vision_config fields that give the number of an image's tokens.
_IMAGE = ("max_num_tiles", "image_size", "patch_size")

# Where the reference is wrong, with the reason.
_CORRECTED = {
    # index_k_proj maps hidden_size to sparse_index_dim: the key has one head, the query four.
    # 57 layers x 32768 tokens x 128 x 2 bytes; the reference counts four heads.
    "nvidia__MiniMax-M3-NVFP4": {"indexer_bytes": 57 * 32768 * 128 * 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    rows = []
    with (folder / "truth.tsv").open() as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if row["kv_bytes_32768_16bit"]:
                config = json.loads((folder / "configs" / row["config"]).read_text())
                rows.append(_entry(row, config))
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    TABLE.write_text(f"[\n{text}\n]\n")
    print(f"{TABLE}: {len(rows)} models, {TABLE.stat().st_size} bytes")


def _entry(row: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    name = row["config"].removesuffix(".json")
    expected: dict[str, Any] = {
        "attention_bytes": int(row["kv_bytes_32768_16bit"]),
        "indexer_bytes": int(row["indexer_bytes_32768_16bit"]),
        "state_elements": int(row["state_and_conv_elements"]),
        "cross_bytes_per_token": int(row["cross_attn_bytes_per_encoder_token"]),
        "attention_mib_8192": float(row["kv_mib_8192"]),
        "attention_mib_131072": float(row["kv_mib_131072"]),
    }
    expected |= _CORRECTED.get(name, {})
    expected["parameters"] = count_on_meta(config)
    return {"model": name, "expected": expected, "config": relevant_fields(config)}


def relevant_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that sizing asked for, at the same places."""
    reader = text_reader(config, {})
    model_memory(reader, config, mtp=False)
    weights_of(reader, config)
    kept = _kept(config, reader.used, "")
    vision = config.get("vision_config")
    if isinstance(vision, Mapping):
        kept["vision_config"] = {k: vision[k] for k in (*_IMAGE, *TOWER_FIELDS) if k in vision}
    return kept


def _kept(values: Mapping[str, Any], used: set[str], where: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in values.items():
        path = where + name
        if isinstance(value, Mapping) and (name in TEXT_PARTS or path in used):
            kept[name] = _kept(value, used, f"{path}.") or value
        elif name in _ALWAYS or path in used:
            kept[name] = value
    return kept


if __name__ == "__main__":
    main()
