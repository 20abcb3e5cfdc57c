"""What `holdover quality` found, as JSON (docs/quality.md) and as a table for people.

`QUALITY_SCHEMA` changes when a key is renamed or changes its meaning; added keys leave it as it is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdover.plan.sizing.text import table
from holdover.quality.measure import Quality, Stored
from holdover.quality.recall import FACTS

QUALITY_SCHEMA = "holdover.quality/1"


def quality_json(quality: Quality) -> dict[str, Any]:
    """Shares are from 0 to 1, divergences in nats."""
    procedure = quality.procedure
    return {
        "schema": QUALITY_SCHEMA,
        "model": quality.model,
        "architecture": quality.architecture,
        "dtype": quality.dtype,
        "backend": quality.backend,
        "text": quality.text,
        "context_tokens": procedure.context,
        "chunks": procedure.chunks,
        "scored_tokens": quality.scored_tokens,
        "recall_tokens": procedure.recall or None,
        "recall_facts": FACTS if procedure.recall else None,
        "window": None if quality.window is None else asdict(quality.window),
        "choices": [_choice_json(quality, stored) for stored in quality.choices],
    }


def _choice_json(quality: Quality, stored: Stored) -> dict[str, Any]:
    figures = stored.figures
    found: dict[str, Any] = {
        "kv": stored.kv,
        "is_reference": figures is None,
        "sparse_blocks": stored.sparse_blocks,
        "bytes_per_token": stored.bytes_per_token,
        "capacity": round(stored.capacity, 4),
        "perplexity": quality.perplexity if figures is None else figures.perplexity,
    }
    if figures is not None:
        kept = asdict(figures)
        found |= {k: kept[k] for k in ("perplexity_ratio", "kl_mean", "kl_p99", "same_top")}
    return found | {"recall": stored.recall, "recall_same_top": stored.recall_same_top}


def quality_text(report: dict[str, Any]) -> str:
    """Every number comes from the JSON."""
    scored = f"{report['scored_tokens']:,} tokens scored"
    lines = [
        f"{report['model']}  {report['architecture']}, weights {report['dtype']}, "
        f"kernels {report['backend']}",
        f"  text: {report['text']}; {report['chunks']} x {report['context_tokens']:,} tokens, the "
        f"second half of each: {scored}",
    ]
    if report["window"] is not None:
        window = report["window"]
        lines.append(
            f"  all but the first keep {window['window_tokens']:,} tokens and the first "
            f"{window['sink_tokens']} of each chunk (--window, --sinks)"
        )
    columns = [
        "KV", ">bytes/token", ">tokens of bf16", ">mean KL", ">99 % KL", ">same top token",
        ">perplexity", ">ratio",
    ]  # fmt: skip
    if report["recall_tokens"] is not None:
        columns.append(">recall")
        if any(choice["sparse_blocks"] is not None for choice in report["choices"]):
            columns.append(">same answer")
        lines.append(
            f"  recall: {report['recall_facts']} facts through {report['recall_tokens']:,} tokens, "
            "asked at the end; by chance "
            f"{1 / report['recall_facts']:.0%}"
        )
    rows = [_cells(choice) for choice in report["choices"]]
    rows = [row[: len(columns)] for row in rows]
    return "\n".join([*lines, "", *table(columns, rows)]) + "\n"


def _cells(choice: dict[str, Any]) -> list[str]:
    name = f"{choice['kv']}, exact" if choice["is_reference"] else choice["kv"]
    if choice["sparse_blocks"] is not None:
        name += f", {choice['sparse_blocks']} blocks"
    cells = [name, f"{choice['bytes_per_token']:,}", f"{choice['capacity']:.2f} x"]
    if choice["is_reference"]:
        cells += ["-", "-", "-", f"{choice['perplexity']:.3f}", "-"]
    else:
        cells += [
            f"{choice['kl_mean']:.5f}",
            f"{choice['kl_p99']:.4f}",
            f"{choice['same_top']:.1%}",
            f"{choice['perplexity']:.3f}",
            f"{choice['perplexity_ratio']:.4f}",
        ]
    recalls = (choice["recall"], choice["recall_same_top"])
    return [*cells, *("-" if share is None else f"{share:.0%}" for share in recalls)]
