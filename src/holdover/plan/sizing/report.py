"""A sizing plan as JSON, as docs/plan-json.md describes it: tables, CSV and the page show no more.

`SIZING_SCHEMA` changes when a key is renamed or changes its meaning; added keys leave it as it is.
Sizes are whole bytes under keys ending in `_bytes`, of the whole model unless a key says device.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from shlex import quote
from typing import TYPE_CHECKING, Any

from holdover.plan.measured import measured_quality
from holdover.plan.sizing.formula import formula, limit_text
from holdover.plan.sizing.offload import BYTES_PER_S, Offload
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.solve import EngineAnswer, SizingPlan
from holdover.plan.sizing.text import printable
from holdover.plan.sizing.weights import Weights
from holdover.spec.memory import StoredMemory

if TYPE_CHECKING:
    from holdover.plan.sizing.ceiling import Ceiling
    from holdover.plan.sizing.changes import Change
    from holdover.plan.sizing.command import Command
    from holdover.plan.sizing.goal import GoalAnswer
    from holdover.plan.sizing.lengths import LengthsAnswer

SIZING_SCHEMA = "holdover.sizing/1"


def sizing_json(plan: SizingPlan) -> dict[str, Any]:
    cache, model = plan.cache, plan.model
    quality = measured_quality(plan.source.metadata, cache.codec)
    report: dict[str, Any] = {
        "schema": SIZING_SCHEMA,
        "model": plan.source.name,
        "origin": plan.source.origin,
        "architecture": model.architecture,
        "model_type": model.model_type,
        "layers": model.n_layers,
        "model_context_tokens": model.max_context_tokens,
        "kv": cache.codec,
        "block_tokens": cache.block_tokens,
        "weights_bytes": None if plan.weights is None else plan.weights.n_bytes,
        "weights": None if plan.weights is None else _weights_json(plan.weights),
        "bytes_per_token": _number(cache.growing_bytes_per_token),
        "first_bytes_per_token": _number(cache.first_bytes_per_token),
        "fixed_bytes": cache.fixed_bytes,
        "formula": [formula(part) for part in cache.parts],
        "conversation": _conversation(plan, plan.context_tokens, with_parts=True),
        "contexts": [_conversation(plan, n, with_parts=False) for n in plan.table_tokens],
        "users": plan.users,
        "users_bytes": cache.held_by(plan.users, plan.context_tokens, plan.shared_tokens),
        "shared_prefix_tokens": plan.shared_tokens,
        "quality": None if quality is None else quality.json(),
    }
    if plan.scenario is not None:
        report |= device_json(plan.scenario)
        report["decode_ceiling"] = None if plan.ceiling is None else _ceiling_json(plan.ceiling)
    if plan.lengths is not None:
        report["lengths"] = _lengths_json(plan.lengths)
    if plan.engine is not None:
        report["engine"] = _engine_json(plan.engine)
    if plan.goal is not None:
        report["goal"] = _goal_json(plan.goal, plan.command)
    report["assumptions"] = [
        {"field": a.field, "value": a.value, "source": a.source} for a in plan.assumptions
    ]
    safe: dict[str, Any] = printable(report)
    return safe


def curves_json(plan: SizingPlan, count: int = 40) -> dict[str, list[dict[str, int]]]:
    """Bytes over context length and over users, summed over all devices, for charts."""
    longest = plan.model.max_context_tokens or max(plan.table_tokens)
    most = plan.users * 2
    if plan.scenario is not None:
        most = max(most, 2 * min(plan.scenario.max_users(), 5000))
    by_tokens = _spread(max(longest, plan.context_tokens), count)
    by_users = _spread(max(most, 8), count)
    return {
        "tokens": [{"tokens": n, "cache_bytes": _all(plan, plan.users, n)} for n in by_tokens],
        "users": [
            {"users": n, "cache_bytes": _all(plan, n, plan.context_tokens)} for n in by_users
        ],
    }


def _all(plan: SizingPlan, users: int, n_tokens: int) -> int:
    if plan.scenario is None:
        return plan.cache.held_by(users, n_tokens, plan.shared_tokens)
    return plan.scenario.n_devices * plan.scenario.held_bytes(users, n_tokens)


def _spread(longest: int, count: int) -> list[int]:
    """About `count` whole numbers from 1 to `longest`."""
    return sorted({1, *(max(1, longest * i // count) for i in range(1, count + 1))})


def device_json(scenario: Scenario) -> dict[str, Any]:
    """What fits. All bytes are of the fullest device."""
    device = scenario.device
    found: dict[str, Any] = {
        "device": {
            "name": device.name,
            "count": scenario.n_devices,
            "memory_bytes": device.memory_bytes,
            "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
            "weights_bytes": scenario.weights_bytes,
            "headroom_bytes": scenario.headroom_bytes,
            "cache_room_bytes": scenario.cache_room_bytes,
            "cache_bytes": scenario.cache_bytes,
            "needed_bytes": scenario.weights_bytes + scenario.cache_bytes,
            "margin_bytes": scenario.margin_bytes,
            "stored": [
                _shares_json(whole, rank, scenario.n_devices)
                for whole, rank in zip(
                    scenario.whole_cache.parts, scenario.rank_cache.parts, strict=True
                )
            ],
        },
        "fits": scenario.fits,
        "max_users": scenario.max_users(),
        "max_context": scenario.max_context_tokens(),
    }
    if scenario.offload is not None:
        found["offload"] = _offload_json(scenario, scenario.offload)
    return found


def _shares_json(whole: StoredMemory, rank: StoredMemory, n_devices: int) -> dict[str, Any]:
    """How often a part is stored over all devices: heads repeat where there are too few."""
    elements = n_devices * rank.memory.row_elements
    return {
        "label": whole.memory.label,
        "heads": max(plane.heads for plane in whole.memory.planes),
        "heads_per_device": max(plane.heads for plane in rank.memory.planes),
        "copies": _number(Fraction(elements, whole.memory.row_elements)),
    }


def _offload_json(scenario: Scenario, offload: Offload) -> dict[str, Any]:
    resume_s = offload.resume_s(scenario.own_bytes, scenario.n_devices)
    return {
        "to": offload.home,
        "room_bytes": offload.n_bytes,
        "users_on_device": scenario.resident_users,
        "users_waiting": scenario.users - scenario.resident_users,
        "waiting_bytes": scenario.waiting_bytes,
        "margin_bytes": scenario.offload_margin_bytes,
        "resume_ms_at_least": round(resume_s * 1000, 3),
        "link_bytes_per_s_assumed": BYTES_PER_S[offload.home],
    }


def _conversation(plan: SizingPlan, n_tokens: int, with_parts: bool) -> dict[str, Any]:
    cache, limit = plan.cache, plan.model.max_context_tokens
    found: dict[str, Any] = {
        "tokens": n_tokens,
        "logical_bytes": cache.logical_bytes(n_tokens),
        "held_bytes": cache.held_bytes(n_tokens),
        "reserved_bytes": cache.held_bytes(n_tokens, plan.step_tokens),
        "by_kind": {
            kind.value: n_bytes for kind, n_bytes in cache.logical_by_kind(n_tokens).items()
        },
        "beyond_model_context": limit is not None and n_tokens > limit,
    }
    if plan.scenario is not None:
        found["max_users"] = replace(plan.scenario, context_tokens=n_tokens).max_users()
    if with_parts:
        found["by_label"] = [_part_json(part, n_tokens, plan.step_tokens) for part in cache.parts]
    return found


def _part_json(part: StoredMemory, n_tokens: int, step_tokens: int) -> dict[str, Any]:
    memory = part.memory
    return {
        "label": memory.label,
        "kind": memory.kind.value,
        "layers": list(memory.layers),
        "planes": [{"name": p.name, "heads": p.heads, "dim": p.dim} for p in memory.planes],
        "tokens_per_row": memory.tokens_per_row,
        "rows": memory.rows(n_tokens),
        "bytes_per_token": _number(part.bytes_per_token),
        "logical_bytes": part.logical_bytes(n_tokens),
        "held_bytes": part.held_bytes(n_tokens),
        "reserved_bytes": part.held_bytes(n_tokens, step_tokens),
        "formula": formula(part),
        "limit": limit_text(part),
    }


def _weights_json(weights: Weights) -> dict[str, Any]:
    return {
        "parameters": weights.parameters,
        "dtype": weights.dtype,
        "active_bytes": weights.active_bytes,
        "source": weights.source,
    }


def _ceiling_json(ceiling: Ceiling) -> dict[str, Any]:
    return {
        "is": "an upper bound from memory bandwidth, not a forecast",
        "users": ceiling.users,
        "weights_read_bytes": ceiling.weights_read_bytes,
        "cache_read_bytes": ceiling.cache_read_bytes,
        "step_ms_at_least": round(ceiling.step_s * 1000, 3),
        "tokens_per_s_at_most": round(ceiling.tokens_per_s, 1),
        "tokens_per_s_per_user_at_most": round(ceiling.tokens_per_s / ceiling.users, 1),
    }


def _lengths_json(answer: LengthsAnswer) -> dict[str, Any]:
    found: dict[str, Any] = {
        "distribution": answer.lengths.text,
        "mean_tokens": round(answer.lengths.mean_tokens),
        "p95_tokens": round(answer.lengths.quantile(0.95)),
        "mean_bytes": round(answer.mean_bytes),
        "method": answer.method,
    }
    if answer.max_users is not None:
        found |= {
            "probability": answer.probability,
            "max_users": answer.max_users,
            "max_users_of_mean": answer.max_users_of_mean,
        }
    return found


def _engine_json(answer: EngineAnswer) -> dict[str, Any]:
    found = answer.reservation
    return {
        "name": answer.name,
        "options": dict(answer.options),
        "devices": answer.n_devices,
        "reserved_bytes": found.n_bytes,
        "logical_bytes": answer.logical_bytes,
        "bytes_per_token": found.bytes_per_token,
        "pool_tokens": found.pool_tokens,
        "buffers": [
            {"what": b.what, "cells": b.cells, "layers": b.layers, "buffer_bytes": b.n_bytes}
            for b in found.buffers
        ],
        "flags": list(found.flags),
        "notes": list(found.notes),
    }


def _goal_json(answer: GoalAnswer, command: Command) -> dict[str, Any]:
    base, goal = answer.base, answer.goal
    asked = (("--users", str(goal.users)), ("--context", str(goal.context_tokens)))
    parts = answer.combination or ()
    flags = [flag for change in parts for flag in change.flags]
    return {
        "users": goal.users,
        "context_tokens": goal.context_tokens,
        "fits": base.fits,
        "margin_bytes": -base.missing_bytes or base.margin_bytes,
        "command": command.text(asked),
        "changes": [
            _change_json(change) | {"command": command.text((*asked, *change.flags))}
            for change in answer.singles
        ],
        "combination": [_change_json(change) for change in parts] or None,
        "combination_points": round(sum(change.cost.points for change in parts), 2) or None,
        "combination_command": command.text((*asked, *flags)) if parts else None,
    }


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "name": change.name,
        "what": change.what,
        "flag": " ".join(f"{name} {quote(value)}" for name, value in change.flags),
        "pays": change.cost.pays,
        "points": round(change.cost.points, 2),
        "cost": change.cost.text,
        "margin_bytes": change.scenario.margin_bytes,
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
