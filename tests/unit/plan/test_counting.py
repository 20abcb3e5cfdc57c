"""Parameters counted from a config against published counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdover.plan.sizing.counting import count_parameters

TABLE = Path(__file__).parents[3] / "tools" / "catalogue_models.tsv"
# Published counts that include an image tower, which the config in the table does not describe.
TOWER_PARAMETERS = {"gemma-3-4b": 420_000_000, "gemma-3-12b": 422_000_000}


def published() -> list[Any]:
    """(config, parameters, those a token uses) of the catalogue's models whose config stands
    beside their published count."""
    head, *lines = TABLE.read_text().splitlines()
    columns = head.split("\t")
    rows = [dict(zip(columns, line.split("\t"), strict=False)) for line in lines]
    return [
        pytest.param(
            json.loads(r["source"]),
            int(r["parameters"]) - TOWER_PARAMETERS.get(r["name"], 0),
            int(r["active"]) - TOWER_PARAMETERS.get(r["name"], 0),
            id=r["name"],
        )
        for r in rows
        if r.get("source", "").startswith("{")
    ]


@pytest.mark.parametrize(("config", "total", "active"), published())
def test_within_one_percent_of_what_was_published(
    config: dict[str, Any], total: int, active: int
) -> None:
    found = count_parameters(config)
    assert found is not None
    assert found.count == pytest.approx(total, rel=0.01)
    # The embedding is not read but for one row, which published counts do not leave out.
    assert 0.75 * active < found.active <= active * 1.01


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "zamba2", "num_hidden_layers": 54, "hidden_size": 2560},
        {"model_type": "gemma3n_text", "num_hidden_layers": 30, "hidden_size": 2048},
        # The class's own width is another size's: it is not taken.
        {"model_type": "olmo3", "num_hidden_layers": 64, "hidden_size": 5120, "vocab_size": 100278,
         "num_attention_heads": 40, "num_key_value_heads": 8},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_what_is_not_known_is_not_guessed(config: dict[str, Any]) -> None:
    assert count_parameters(config) is None
