"""A serving plan as JSON: the numbers that the tables of `holdover plan` show, and no others.

`PLAN_SCHEMA` changes when a key is renamed or changes its meaning; added keys leave it as it is.
The fields of `Parts`, `Conversations` and `Plane` are keys under their own names.
Sizes are whole bytes under keys ending in `_bytes`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdover.plan.serving import CONVERSATION_TOKENS, ServingPlan
from holdover.spec.layout import BlockLayout
from holdover.spec.residency import Chunk, Full, Residency, Window

PLAN_SCHEMA = "holdover.plan/1"


def plan_json(plan: ServingPlan, with_fields: bool = False) -> dict[str, Any]:
    """`memory` sums to `memory_bytes`; `fields` lists where each byte of a block goes."""
    subject, limits = plan.subject, plan.limits
    groups = range(len(plan.layout.blocks))
    return {
        "schema": PLAN_SCHEMA,
        "model": subject.model,
        "architecture": subject.architecture,
        "dtype": subject.dtype,
        "weights": subject.weights,
        "kv": subject.kv,
        "backend": subject.backend,
        "decoder": subject.decoder,
        "memory_bytes": plan.memory_bytes,
        "memory": memory_items(plan),
        "derivation": list(plan.derivation),
        "limits": {
            "model_context_tokens": subject.context_tokens,
            "max_context_tokens": limits.max_context_tokens,
            "context_set_by": plan.context_set_by,
            "max_sequences": limits.max_sequences,
            "step_tokens": limits.step_tokens,
            "block_tokens": plan.layout.spec.block_tokens,
        },
        "window": _window_json(plan),
        "bytes_per_token": sum(block.logical_bytes(1) for block in plan.layout.blocks),
        "sectors": {"count": plan.n_sectors, "sector_bytes": plan.layout.sector_bytes},
        "groups": [_group_json(plan, group, with_fields) for group in groups],
        "conversations": [asdict(plan.conversations(n)) for n in CONVERSATION_TOKENS],
        "layout_fingerprint": plan.layout.fingerprint.hex(),
        "quality": None if subject.quality is None else subject.quality.json(),
    }


def memory_items(plan: ServingPlan) -> dict[str, int]:
    """The budget identity's right side, in its order."""
    tail = {"arena_bytes": plan.arena_bytes, "slack_bytes": plan.slack_bytes}
    return asdict(plan.parts) | tail


def residency_text(residency: Residency) -> str:
    """ "full", "window 512", "chunk 8192", with "4 sinks + " in front where there are any."""
    match residency:
        case Full():
            return "full"
        case Window():
            text = f"window {residency.window_tokens}"
        case Chunk():
            text = f"chunk {residency.chunk_tokens}"
        case _:
            text = repr(residency)
    return f"{residency.sink_tokens} sinks + {text}" if residency.sink_tokens else text


def ranges_text(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def field_rows(block: BlockLayout) -> list[dict[str, Any]]:
    """Every field of a block with its place, and the alignment bytes behind it."""
    ends = [placed.offset for placed in block.fields[1:]] + [block.nbytes]
    return [
        {
            "layer": placed.layer,
            "plane": placed.plane,
            "field": placed.field.name,
            "codec": placed.codec,
            "dtype": placed.field.dtype.value,
            "axes": list(placed.field.axes),
            "shape": list(placed.field.shape),
            "offset": placed.offset,
            "field_bytes": placed.field.nbytes,
            "padding_bytes": end - placed.offset - placed.field.nbytes,
        }
        for placed, end in zip(block.fields, ends, strict=True)
    ]


def _window_json(plan: ServingPlan) -> dict[str, Any] | None:
    """The imposed one, and the most bytes that one conversation ever holds, whatever its length:
    while it decodes, and in the widest step of a prompt."""
    if plan.subject.window is None:
        return None
    layout, limits = plan.layout, plan.limits
    decoding, widest = (
        layout.held_bytes(layout.peak_blocks(limits.max_context_tokens, step_tokens))
        for step_tokens in (1, limits.step_tokens)
    )
    bounds = {"most_held_bytes": decoding, "most_held_in_a_step_bytes": widest}
    return asdict(plan.subject.window) | bounds


def _group_json(plan: ServingPlan, index: int, with_fields: bool) -> dict[str, Any]:
    layout, block = plan.layout, plan.layout.blocks[index]
    group: dict[str, Any] = {
        "residency": residency_text(block.group.residency),
        "layers": list(block.group.layers),
        "planes": [asdict(plane) for plane in block.group.planes],
        "bytes_per_token": block.logical_bytes(1),
        "block_bytes": block.nbytes,
        "padding_bytes": block.padding_nbytes,
        "blocks_per_sector": layout.blocks_per_sector[index],
        "sector_remainder_bytes": layout.remainder_bytes[index],
    }
    return group | {"fields": field_rows(block)} if with_fields else group
