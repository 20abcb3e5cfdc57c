"""The bytes of a sizing plan over context lengths, as CSV: one row per length."""

from __future__ import annotations

import csv
import io
from typing import Any


def contexts_csv(report: dict[str, Any]) -> str:
    """Columns as in the JSON's `contexts`, `by_kind` as one column each."""
    rows = report["contexts"]
    kinds = list(rows[0]["by_kind"])
    plain = [key for key in rows[0] if key not in ("by_kind", "beyond_model_context")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "kv", *plain, *(f"{kind}_bytes" for kind in kinds)])
    for row in rows:
        numbers = [row[key] for key in plain] + [row["by_kind"][kind] for kind in kinds]
        writer.writerow([report["model"], report["kv"], *numbers])
    return out.getvalue()
