"""Writes src/holdover/plan/measured.json from results of `holdover quality --json`.

    holdover quality smollm2 --kv int8,int4 --json > smollm2.json
    python tools/measure_quality.py smollm2=smollm2.json gemma3-270m=gemma.json

A model's figures in several files are put together; records of other models stay. What is stored
unquantised is left out: it is what others are measured against.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdover
from holdover.plan.measured import marks_of
from holdover.weights import open_header

TARGET = Path(holdover.__file__).parent / "plan/measured.json"
EXACT = ("fp32", "bf16", "fp16")
KEPT = {"kl_mean": 7, "kl_p99": 6, "same_top": 5, "perplexity_ratio": 6, "recall": 4}  # digits


def main() -> None:
    kept = json.loads(TARGET.read_text())["records"]
    records: dict[str, dict[str, Any]] = {}
    for argument in sys.argv[1:]:
        model, _, path = argument.partition("=")
        report = json.loads(Path(path).read_text())
        assert report["schema"] == "holdover.quality/1", path
        day = datetime.now(UTC).date().isoformat()
        procedure = {key: report[key] for key in ("text", "context_tokens", "chunks", "dtype")}
        record = records.setdefault(
            model,
            {
                "model": model,
                "marks": marks_of(open_header(model).metadata),
                "measured": f"{day}, holdover {holdover.__version__}",
                "procedure": procedure,
                "figures": {},
            },
        )
        assert record["marks"], f"{model} has no marks to be known by"
        for choice in report["choices"]:
            if choice["kv"] not in EXACT:
                _add(record["figures"].setdefault(choice["kv"], {}), choice)
    kept = [record for record in kept if record["model"] not in records]
    text = json.dumps({"records": [*kept, *records.values()]}, indent=1)
    TARGET.write_text(text + "\n", encoding="utf-8")


def _add(figures: dict[str, Any], choice: dict[str, Any]) -> None:
    for key, digits in KEPT.items():
        value = choice.get(key)
        if value is not None or key not in figures:
            figures[key] = None if value is None else round(value, digits)


if __name__ == "__main__":
    main()
