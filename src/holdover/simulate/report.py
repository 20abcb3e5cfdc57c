"""What a simulation found, as JSON, text and CSV. Every text is made from the JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from holdover.bench.spread import PERCENTS
from holdover.plan.sizing.text import printable, table
from holdover.simulate.run import Outcome, Setup
from holdover.simulate.trace import Trace
from holdover.units import format_bytes as size

SIMULATE_SCHEMA = "holdover.simulate/1"
Report = dict[str, Any]


def simulate_json(trace: Trace, setup: Setup, outcomes: Sequence[Outcome]) -> Report:
    """Byte counts under keys that end in `_bytes`, times in seconds of the trace under `_s`."""
    n_repeated, n_blocks = trace.repeats()
    subject, costs = setup.subject, setup.costs
    spec = subject.layout.spec
    report = {
        "schema": SIMULATE_SCHEMA,
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "block_tokens": trace.block_tokens,
            "requests": len(trace.requests),
            "conversations": trace.n_conversations,
            "is_closed_loop": trace.is_closed_loop,
            "prompt_tokens": trace.prompt_tokens,
            "blocks": n_blocks,
            "repeated_blocks": n_repeated,
        },
        "model": {
            "name": subject.name,
            "architecture": subject.architecture,
            "kv": subject.kv,
            "block_tokens": spec.block_tokens,
            "block_bytes": [block.nbytes for block in subject.layout.blocks],
            "weights_bytes": None if subject.weights is None else subject.weights.n_bytes,
            "max_context_tokens": subject.max_context_tokens,
        },
        "settings": {
            "eviction": setup.eviction,
            "max_sequences": setup.max_sequences,
            "step_tokens": setup.step_tokens,
            "tiers": {tier.kind: tier.cap_bytes for tier in setup.tiers},
            "speed": setup.speed,
            "users": setup.n_users,
        },
        "costs": {
            "prefill_tokens_per_s": costs.prefill_tokens_per_s,
            "decode_s": costs.decode_s,
            "kv_bytes_per_s": costs.kv_bytes_per_s,
            "tier_read_bytes_per_s": {
                tier.kind: setup.links.read_bytes_per_s[tier.kind] for tier in setup.tiers
            },
            "notes": list(costs.notes),
        },
        "sizes": [_size_json(outcome) for outcome in outcomes],
    }
    found: Report = printable(report)
    return found


def _size_json(outcome: Outcome) -> Report:
    return {
        "asked": outcome.asked,
        "arena_bytes": outcome.arena_bytes,
        "longest_request_tokens": outcome.context_tokens,
        "served": outcome.requests - outcome.refused,
        "refused": outcome.refused,
        "prompt_tokens": outcome.prompt_tokens,
        "output_tokens": outcome.output_tokens,
        "hit_tokens": outcome.hit_tokens,
        "hit_rate": outcome.hit_rate,
        "arena": {
            "hit_tokens": outcome.arena_hit_tokens,
            "evicted_blocks": outcome.evicted_blocks,
        },
        "tiers": {name: asdict(tier) for name, tier in outcome.tiers.items()},
        "lost_blocks": outcome.lost_blocks,
        "declined_loads": outcome.declined_loads,
        "reuse_ended": outcome.reasons,
        "parked": outcome.parked,
        "held_conversations": outcome.held_conversations,
        "most_running": outcome.most_running,
        "mean_running": outcome.mean_running,
        "span_s": outcome.span_s,
        "busy_s": outcome.busy_s,
        "ttft_s": outcome.ttft_s,
        "queue_s": outcome.queue_s,
        "request_s": outcome.request_s,
    }


def simulate_text(report: Report) -> str:
    """The report for people."""
    blocks = [_heading(report), _reuse(report), _times(report), _moves(report), _notes(report)]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def summary(report: Report) -> str:
    """One sentence about trace and model."""
    trace, model = report["trace"], report["model"]
    return (
        f"{trace['requests']:,} requests of {trace['conversations']:,} conversations "
        f"({trace['name']}) on {model['name']}, KV {model['kv']}, "
        f"blocks of {model['block_tokens']} tokens"
    )


def _heading(report: Report) -> list[str]:
    trace, settings = report["trace"], report["settings"]
    lines = [summary(report)]
    if trace["blocks"]:
        lines.append(
            f"  {trace['repeated_blocks'] / trace['blocks']:.1%} of the trace's {trace['blocks']:,}"
            f" blocks of {trace['block_tokens']} tokens repeat: what an unbounded cache would reuse"
        )
    else:
        lines.append("  the trace does not say which tokens are the same: nothing can be reused")
    speed = "" if settings["speed"] == 1 else f", {settings['speed']:g} x as fast"
    users = "" if settings["users"] is None else f", {settings['users']} conversations at a time"
    sent = "when what it waits for has ended" if trace["is_closed_loop"] else "at the trace's times"
    lines.append(
        f"  each request is sent {sent}{speed}{users}; "
        f"up to {settings['max_sequences']} sequences, {settings['step_tokens']:,} tokens a step"
    )
    return lines


def _reuse(report: Report) -> list[str]:
    tiers = list(report["settings"]["tiers"])
    columns = ["memory", ">KV arena", ">hit rate", ">from arena", *(f">from {t}" for t in tiers)]
    columns += [">held at the end", ">running", ">parked", ">evicted blocks", ">refused"]
    rows = []
    for found in report["sizes"]:
        prompt_tokens = found["prompt_tokens"] or 1
        hits = [found["arena"], *(found["tiers"][tier] for tier in tiers)]
        rows.append([
            found["asked"], size(found["arena_bytes"]), f"{found['hit_rate']:.1%}",
            *(f"{one['hit_tokens'] / prompt_tokens:.1%}" for one in hits),
            f"{found['held_conversations']:,}",
            f"{found['mean_running']:.1f} ({found['most_running']})", f"{found['parked']:,}",
            f"{found['arena']['evicted_blocks']:,}", f"{found['refused']:,}",
        ])  # fmt: skip
    return [
        *table(columns, rows),
        "hit rate: of the prompt tokens that were served; held: conversations whose last prompt",
        "lies whole in the arena; running: sequences at a time on average, and at most",
    ]


def _times(report: Report) -> list[str]:
    columns = ["memory", *(f">TTFT p{p}" for p in PERCENTS), *(f">queued p{p}" for p in PERCENTS)]
    columns += [">request p50", ">busy", ">output tokens/s"]
    rows = []
    for found in report["sizes"]:
        span_s = found["span_s"] or 1.0
        rows.append([
            found["asked"], *(duration(found["ttft_s"][f"p{p}"]) for p in PERCENTS),
            *(duration(found["queue_s"][f"p{p}"]) for p in PERCENTS),
            duration(found["request_s"]["p50"]), f"{found['busy_s'] / span_s:.0%}",
            f"{found['output_tokens'] / span_s:,.1f}",
        ])  # fmt: skip
    return [*table(columns, rows), "estimated: see below; queued: of the TTFT, until it was let in"]


def _moves(report: Report) -> list[str]:
    columns = ["memory", "tier", ">holds", ">read", ">written", ">evicted blocks", ">not taken"]
    rows = [
        [
            found["asked"], name, f"{size(tier['held_bytes'])} of {size(tier['cap_bytes'])}",
            size(tier["read_bytes"]), size(tier["written_bytes"]),
            f"{tier['evicted_blocks']:,}", f"{tier['refused_stores']:,}",
        ]
        for found in report["sizes"]
        for name, tier in found["tiers"].items()
    ]  # fmt: skip
    if not rows:
        return []
    slower = sum(found["declined_loads"] for found in report["sizes"])
    lines = [*table(columns, rows), "not taken: stores refused while others were being written"]
    if slower:
        lines.append(f"{slower:,} loads were not made: computing was predicted to be as fast")
    return lines


def _notes(report: Report) -> list[str]:
    lines = ["assumed", *(f"  {note}" for note in report["costs"]["notes"])]
    for kind, rate in report["costs"]["tier_read_bytes_per_s"].items():
        lines.append(f"  {kind} is read at {rate / 1e9:g} GB/s: --{kind}-bandwidth")
    return lines


def duration(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    if value_s < 1:
        return f"{value_s * 1e3:,.0f} ms"
    return f"{value_s:,.1f} s" if value_s < 600 else f"{value_s / 60:,.0f} min"


def simulate_csv(report: Report) -> str:
    """A row for each size; what JSON nests is joined by underscores."""
    rows = [_flat(found) for found in report["sizes"]]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, ["model", "kv", *columns], restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({"model": report["model"]["name"], "kv": report["model"]["kv"], **row})
    return out.getvalue()


def _flat(values: Report, before: str = "") -> Report:
    found: Report = {}
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}_")
        else:
            found[name] = value
    return found
