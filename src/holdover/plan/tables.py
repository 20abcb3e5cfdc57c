"""A serving plan as tables for people. Every number comes from `report`'s JSON.

On a terminal the tables have rules and colour; in a pipe they are plain text of a fixed width.
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdover.plan.measured import quality_line
from holdover.plan.report import plan_json, ranges_text
from holdover.plan.serving import ServingPlan
from holdover.units import format_bytes

_UNQUANTISED = ("fp32", "bf16", "fp16")
_MEANING = {
    "process_bytes": "interpreter, libraries and tokenizer, as measured",
    "weights_bytes": "parameters as loaded",
    "workspace_bytes": "the kernel backend's scratch",
    "tables_bytes": "block tables: the cache's own and one step's",
    "activations_bytes": "one step's widest forward pass and sampling",
    "tiers_bytes": "what --tiers keep in this process",
    "centres_bytes": "what keys are stored less of",
    "ends_bytes": "last hidden states of prompts (--prompt-ends)",
    "arena_bytes": "the KV cache, whole sectors",
    "slack_bytes": "KV budget that fills no sector",
}


def print_plan(console: Console, plan: ServingPlan, with_fields: bool = False) -> None:
    """The full report of `holdover plan`."""
    report = plan_json(plan, with_fields)
    tables = [_memory_table(console, report), _groups_table(console, report)]
    if with_fields:
        tables += _field_tables(console, report)
    tables.append(_conversations_table(console, report))
    with console.capture() as capture:
        _print_heading(console, report)
        for table in tables:
            console.print()
            console.print(table)
    text = capture.get()
    if not console.is_terminal:  # rich fills every line up to the table's width
        text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    console.file.write(text)


def short_lines(plan: ServingPlan) -> tuple[str, ...]:
    """What `serve` and `chat` print of their plan before they load."""
    report = plan_json(plan)
    limits, memory = report["limits"], report["memory"]
    fits = ", ".join(
        f"{row['fit']} of {_tokens(row['context_tokens'])}"
        for row in report["conversations"]
        if row["fit"] is not None
    )
    if fits:  # none of the table's lengths is within a short --max-context
        fits = f"conversations that fit: {fits}; "
    return (
        f"{report['model']} ({report['architecture']}, {report['weights']}, KV {report['kv']}, "
        f"{_kernels(report)}): "
        f"{format_bytes(report['memory_bytes'])} in all",
        *report["derivation"],
        f"arena {format_bytes(memory['arena_bytes'])} at {report['bytes_per_token']:,} bytes a "
        f"token; context {_context(limits)}",
        *([] if report["window"] is None else [_window(report)]),
        f"{fits}up to {limits['max_sequences']} are computed at once (--max-sequences)",
    )


def _print_heading(console: Console, report: dict[str, Any]) -> None:
    limits = report["limits"]
    console.print(
        f"[bold]{report['model']}[/]  {report['architecture']}, weights {report['weights']}, "
        f"KV {report['kv']}, {_kernels(report)}"
    )
    for line in report["derivation"]:
        console.print(f"  {line}")
    console.print(
        f"  up to {limits['max_sequences']} sequences, {limits['step_tokens']} tokens a step"
    )
    console.print(f"  context {_context(limits)}")
    if report["window"] is not None:
        console.print(f"  {_window(report)}")
    if report["quality"] is not None:
        console.print(f"  KV {report['kv']} {quality_line(report['quality'])}")
    elif report["kv"] not in _UNQUANTISED:
        console.print(f"  what KV {report['kv']} costs here: holdover quality --kv {report['kv']}")


def _kernels(report: dict[str, Any]) -> str:
    """What computes attention, and what the rest where that is another."""
    backend, decoder = report["backend"], report["decoder"]
    return f"kernels {backend}" + (", layers torch" if backend != decoder == "torch" else "")


def _context(limits: dict[str, Any]) -> str:
    """The context, and what set it."""
    tokens = f"{limits['max_context_tokens']} tokens"
    own = f"the model's own limit is {limits['model_context_tokens']}"
    match limits["context_set_by"]:
        case "model":
            return f"{tokens}, the model's own limit"
        case "budget":
            return f"{tokens}, the most that this budget always holds; {own}"
        case "window":
            return f"{tokens}, as long as tables reach (--max-context); {own}"
        case flag:
            return f"{tokens}, {flag}; {own}"


def _window(report: dict[str, Any]) -> str:
    """What is kept, and the bound that follows."""
    window = report["window"]
    kept = f"the last {window['window_tokens']} tokens"
    if window["sink_tokens"]:
        kept = f"the first {window['sink_tokens']} and {kept}"
    held, widest = (
        format_bytes(window[key]) for key in ("most_held_bytes", "most_held_in_a_step_bytes")
    )
    return f"keeps {kept}: {held} at any length, {widest} while a prompt is computed"


def _memory_table(console: Console, report: dict[str, Any]) -> Table:
    table = _table(console, "memory", ">size", ">bytes", "what it is")
    for key, n_bytes in report["memory"].items():
        if key in ("tiers_bytes", "centres_bytes", "ends_bytes") and not n_bytes:
            continue
        name = key.removesuffix("_bytes")
        table.add_row(name, format_bytes(n_bytes), f"{n_bytes:,}", _MEANING[key])
    total_bytes = report["memory_bytes"]
    table.add_section()
    table.add_row(
        "= memory", format_bytes(total_bytes), f"{total_bytes:,}", "the sum", style="bold"
    )
    return table


def _groups_table(console: Console, report: dict[str, Any]) -> Table:
    table = _table(
        console, "group", "layers", ">bytes/token", ">block bytes", ">padding",
        ">blocks/sector", ">sector remainder",
    )  # fmt: skip
    for group in report["groups"]:
        layers = tuple(group["layers"])
        table.add_row(
            group["residency"],
            f"{len(layers)} ({ranges_text(layers)})",
            f"{group['bytes_per_token']:,}",
            f"{group['block_bytes']:,}",
            f"{group['padding_bytes']:,}",
            f"{group['blocks_per_sector']:,}",
            f"{group['sector_remainder_bytes']:,}",
        )
    sectors, block_tokens = report["sectors"], report["limits"]["block_tokens"]
    table.caption = (
        f"{sectors['count']:,} sectors of {sectors['sector_bytes']:,} bytes; "
        f"blocks of {block_tokens} tokens"
    )
    return table


def _conversations_table(console: Console, report: dict[str, Any]) -> Table:
    table = _table(console, "conversation", ">fit", ">logical each", ">held each", "")
    for row in report["conversations"]:
        possible = row["fit"] is not None
        table.add_row(
            _tokens(row["context_tokens"]),
            f"{row['fit']:,}" if possible else "-",
            format_bytes(row["logical_bytes"]) if possible else "-",
            format_bytes(row["held_bytes"]) if possible else "-",
            row["reason"] or "",
        )
    table.caption = "logical: by the formula; held: whole blocks, while decoding"
    return table


def _field_tables(console: Console, report: dict[str, Any]) -> list[Table]:
    tables = []
    for group in report["groups"]:
        table = _table(
            console, "layer", "plane", "field", "codec", "dtype", "shape", ">offset", ">bytes",
            ">padding",
        )  # fmt: skip
        table.title = f"block of group {group['residency']}"
        for field in group["fields"]:
            axes = zip(field["axes"], field["shape"], strict=True)
            table.add_row(
                str(field["layer"]), field["plane"], field["field"], field["codec"],
                field["dtype"], " x ".join(f"{n} {axis}" for axis, n in axes),
                f"{field['offset']:,}", f"{field['field_bytes']:,}", str(field["padding_bytes"]),
            )  # fmt: skip
        tables.append(table)
    return tables


def _table(console: Console, *columns: str) -> Table:
    """Columns starting with ">" are right-aligned; no rules in a pipe."""
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=box, pad_edge=False, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left"
        )
    return table


def _tokens(n_tokens: int) -> str:
    return f"{n_tokens // 1024}k tokens" if n_tokens % 1024 == 0 else f"{n_tokens} tokens"
