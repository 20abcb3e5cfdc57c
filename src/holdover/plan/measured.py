"""What a codec was measured to cost in quality, for models that were measured.

`measured.json` is written by `tools/measure_quality.py`. A model is known by what its GGUF header
says of itself: its name and its sizes, whatever type its weights are stored in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KNOWN_BY = ("general.name", "general.architecture")
KNOWN_BY_SIZES = ("block_count", "embedding_length", "attention.head_count")


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """Against an exact cache, as `holdover quality` words it; `recall` None: not asked."""

    kl_mean: float
    kl_p99: float
    same_top: float
    perplexity_ratio: float
    recall: float | None
    measured: str  # the day, and the version of holdover

    def json(self) -> dict[str, Any]:
        return asdict(self)


def marks_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is known by; empty where its header does not say enough."""
    architecture = metadata.get("general.architecture")
    names = (*KNOWN_BY, *(f"{architecture}.{size}" for size in KNOWN_BY_SIZES))
    found = {name: metadata[name] for name in names if name in metadata}
    return found if len(found) == len(names) else {}


def measured_quality(metadata: Mapping[str, Any], kv: str) -> MeasuredQuality | None:
    """The figures of `--kv` for the model of a GGUF header; None where nobody measured them."""
    marks = marks_of(metadata)
    if not marks:
        return None
    for record in _records():
        figures = record["figures"].get(kv.replace(" ", ""))
        if record["marks"] == marks and figures is not None:
            return MeasuredQuality(**figures, measured=record["measured"])
    return None


def quality_line(found: Mapping[str, Any]) -> str:
    """From `MeasuredQuality.json()`."""
    recall = found["recall"]
    asked = "" if recall is None else f", recall {recall:.0%}"
    return (
        f"measured: KL {found['kl_mean']:.2g} to an exact cache, same top token "
        f"{found['same_top']:.1%}, perplexity x {found['perplexity_ratio']:.4f}{asked}"
    )


def _records() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("measured.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["records"]
    return found
