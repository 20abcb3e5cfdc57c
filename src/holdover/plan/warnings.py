"""What a person should hear about a plan that can be made but may not work well.

Said by every command that makes a serving plan; each warning names the value that would work.
"""

from __future__ import annotations

from dataclasses import replace

from holdover.plan.machine import Machine
from holdover.plan.serving import ServingPlan, arena_needed_bytes, useful_context_tokens
from holdover.units import format_bytes

_MIB = 2**20


def plan_warnings(plan: ServingPlan, machine: Machine, budget_flag: str) -> tuple[str, ...]:
    """`budget_flag` is the one that a person would change: --kv-memory or --memory."""
    found = (_beyond_the_machine(plan, machine, budget_flag), _tiny_context(plan))
    return tuple(text for text in found if text is not None)


def _beyond_the_machine(plan: ServingPlan, machine: Machine, budget_flag: str) -> str | None:
    if plan.memory_bytes <= machine.available_bytes:
        return None
    parts_bytes = plan.parts.total_bytes
    room_bytes = (machine.available_bytes - parts_bytes) // _MIB * _MIB
    text = (
        f"the plan takes {format_bytes(plan.memory_bytes)}, this machine has "
        f"{format_bytes(machine.available_bytes)} available ({machine.memory_source}): as the "
        "cache fills, the system may end the process. "
    )
    least_tokens = plan.asked_context_tokens or plan.layout.spec.block_tokens
    least = replace(plan.limits, max_context_tokens=least_tokens)
    if room_bytes < arena_needed_bytes(plan.layout, least):
        beside = f"{format_bytes(parts_bytes)} of it is not KV cache"
        tiers_bytes = plan.parts.tiers_bytes
        tiers = f", {format_bytes(tiers_bytes)} of that --tiers" if tiers_bytes else ""
        remedy = "take a smaller model" if not tiers_bytes else "give smaller --tiers"
        return f"{text}No budget would work here: {beside}{tiers}; free memory or {remedy}"
    fitting_bytes = room_bytes if budget_flag == "--kv-memory" else machine.available_bytes
    return f"{text}{budget_flag} {fitting_bytes // _MIB}MiB would fit"


def _tiny_context(plan: ServingPlan) -> str | None:
    if plan.useful_remedy is None:
        return None
    little = "little for a chat" if plan.subject.window is None else "less than the window allows"
    return (
        f"prompt and answer together can have {plan.limits.max_context_tokens} tokens, which is "
        f"{little}; {plan.useful_remedy} holds "
        f"{useful_context_tokens(plan.subject, plan.subject.usual_context_tokens)}"
    )
