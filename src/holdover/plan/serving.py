"""The serving plan: every byte a running server takes, before anything is loaded.

    memory = process + weights + workspace + tables + activations + tiers + centres + ends
             + arena + slack

The engine allocates what stands here and asserts equality; `slack`, the bytes of the KV budget that
fill no whole sector, is the only remainder. Bytes of KV come from the layout, never from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from holdover.errors import BudgetError, ConfigError
from holdover.geometry.imposed import ImposedWindow
from holdover.plan.budget import Budget
from holdover.plan.measured import MeasuredQuality
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.units import ceil_div, format_bytes, largest

# Beside an imposed window nothing of the model ends a conversation, but tables are made for its
# length: block tables, the centres of keys. These are a default, and what int32 positions and the
# tables' size allow with reason.
WINDOWED_CONTEXT_TOKENS = 2**17
MOST_CONTEXT_TOKENS = 2**24
CONVERSATION_TOKENS = (1024, 4096, 16384, 131072)
USEFUL_CONTEXT_TOKENS = 1024  # a short conversation; a chat template alone takes some 30 tokens

_INT32_BYTES = 4
_GROWTH = 2  # a table that grows by doubling may have this many times the entries in use


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything but the arena, in bytes."""

    process_bytes: int  # interpreter, libraries and tokenizer: measured, not counted
    weights_bytes: int
    workspace_bytes: int  # the kernel backend's scratch
    tables_bytes: int
    activations_bytes: int  # of one step, sampling included
    tiers_bytes: int = 0  # in this process: a region, or buffers of what lies elsewhere
    centres_bytes: int = 0  # of keys, and the turns that place them
    ends_bytes: int = 0  # of prompts: kept ones, and one step's

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


PartsFor = Callable[[Limits], Parts]
"""The parts under given limits; none may shrink when a limit grows."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned for, as it is named in reports."""

    model: str
    architecture: str
    dtype: str
    kv: str
    backend: str
    context_tokens: int  # the model's own limit
    weights: str = "fp32"  # how they are stored
    decoder: str = "torch"  # what computes all but attention: native or torch
    quality: MeasuredQuality | None = None  # of `kv`, where this model was measured
    window: ImposedWindow | None = None  # in place of full attention

    @property
    def usual_context_tokens(self) -> int:
        """The longest conversation where nothing else is asked for."""
        return max(self.context_tokens, WINDOWED_CONTEXT_TOKENS if self.window else 0)

    @property
    def most_context_tokens(self) -> int:
        return max(self.context_tokens, MOST_CONTEXT_TOKENS if self.window else 0)


@dataclass(frozen=True, slots=True)
class Conversations:
    """How many conversations of one length the arena holds, all of them decoding.

    `fit` is None when the model or --max-context ends earlier; `reason` says why it is that, or 0.
    """

    context_tokens: int
    fit: int | None
    reason: str | None
    logical_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The identity above, with the layout and the limits that the engine is built from."""

    subject: Subject
    layout: CacheLayout
    limits: Limits
    asked_context_tokens: int | None  # --max-context
    memory_bytes: int
    parts: Parts
    n_sectors: int
    arena_bytes: int
    slack_bytes: int
    derivation: tuple[str, ...]
    useful_remedy: str | None  # what to give for a useful context, where the budget holds less

    def __post_init__(self) -> None:
        assert self.arena_bytes == self.n_sectors * self.layout.sector_bytes
        total_bytes = self.parts.total_bytes + self.arena_bytes + self.slack_bytes
        assert self.memory_bytes == total_bytes, (self.memory_bytes, total_bytes)
        assert 0 <= self.slack_bytes < self.layout.sector_bytes, self.slack_bytes

    @property
    def context_set_by(self) -> str:
        """What ends the context: "model", "window" (as long as usual beside an imposed one),
        "--max-context" or "budget"."""
        context_tokens = self.limits.max_context_tokens
        if context_tokens == self.subject.usual_context_tokens:
            return "model" if self.subject.window is None else "window"
        return "--max-context" if context_tokens == self.asked_context_tokens else "budget"

    def conversations(self, context_tokens: int) -> Conversations:
        layout, limits = self.layout, self.limits
        fit: int | None = None
        reason = None
        longest_tokens = self.asked_context_tokens or self.subject.usual_context_tokens
        if self.subject.window is None and context_tokens > self.subject.context_tokens:
            reason = f"the model's context is {self.subject.context_tokens} tokens"
        elif context_tokens > longest_tokens:
            reason = f"--max-context {longest_tokens}"
        elif context_tokens > limits.max_context_tokens:
            fit, reason = 0, f"the budget holds up to {limits.max_context_tokens} tokens each"
        else:
            fit = layout.max_conversations(self.n_sectors, context_tokens)
        held = layout.held_bytes(layout.peak_blocks(context_tokens, step_tokens=1))
        return Conversations(
            context_tokens, fit, reason, layout.logical_bytes(context_tokens), held
        )


def solve(
    subject: Subject,
    layout: CacheLayout,
    parts_for: PartsFor,
    budget: Budget,
    *,
    max_sequences: int,
    step_tokens: int,
    threads: int = 1,
    asked_context_tokens: int | None = None,
) -> ServingPlan:
    """The plan with the longest context that one sequence can always reach within the budget.

    Raises BudgetError, with the smallest budget that works, when not even one token fits or when
    the context asked for does not; ConfigError when the model has no such context.
    """
    if asked_context_tokens is not None:
        _check_asked(subject, asked_context_tokens)
    ceiling_tokens = asked_context_tokens or subject.usual_context_tokens
    ceiling = Limits(max_sequences, step_tokens, ceiling_tokens, threads)

    def kv_bytes(limits: Limits) -> int:
        parts_bytes = parts_for(limits).total_bytes
        return budget.kv_bytes(parts_bytes, most_usable_bytes(layout, limits))

    def fits(context_tokens: int) -> bool:
        limits = replace(ceiling, max_context_tokens=context_tokens)
        return arena_needed_bytes(layout, limits) <= kv_bytes(limits)

    context_tokens = largest(fits, ceiling_tokens)
    if asked_context_tokens is not None and 0 < context_tokens < ceiling_tokens:
        raise _context_error(layout, ceiling, parts_for, budget, context_tokens)
    if context_tokens == 0:
        raise _empty_error(subject, layout, ceiling, parts_for, budget, asked_context_tokens)

    limits = replace(ceiling, max_context_tokens=context_tokens)
    parts = parts_for(limits)
    budget_bytes = kv_bytes(limits)
    n_sectors, slack_bytes = divmod(budget_bytes, layout.sector_bytes)
    useful_tokens = useful_context_tokens(subject, ceiling_tokens)
    useful = replace(ceiling, max_context_tokens=useful_tokens)
    return ServingPlan(
        subject=subject,
        layout=layout,
        limits=limits,
        asked_context_tokens=asked_context_tokens,
        memory_bytes=parts.total_bytes + budget_bytes,
        parts=parts,
        n_sectors=n_sectors,
        arena_bytes=n_sectors * layout.sector_bytes,
        slack_bytes=slack_bytes,
        derivation=budget.describe(parts.total_bytes, most_usable_bytes(layout, limits)),
        useful_remedy=budget.remedy(
            parts_for(useful).total_bytes, arena_needed_bytes(layout, useful)
        )
        if context_tokens < useful.max_context_tokens
        else None,
    )


def useful_context_tokens(subject: Subject, most_tokens: int) -> int:
    """The context that a budget should have, of what it can have: beside an imposed window, where
    more costs no more, all of it."""
    return most_tokens if subject.window else min(USEFUL_CONTEXT_TOKENS, most_tokens)


def arena_needed_bytes(layout: CacheLayout, limits: Limits) -> int:
    """Smallest arena in which one sequence always reaches the limits' context."""
    blocks = layout.peak_blocks(limits.max_context_tokens, limits.step_tokens)
    return layout.sectors_for(blocks) * layout.sector_bytes


def most_usable_bytes(layout: CacheLayout, limits: Limits) -> int:
    """Bytes of `max_sequences` conversations of full context, each in its widest step."""
    blocks = layout.peak_blocks(limits.max_context_tokens, limits.step_tokens)
    return layout.sectors_for([limits.max_sequences * n for n in blocks]) * layout.sector_bytes


def tables_bytes(layout: CacheLayout, limits: Limits) -> int:
    """Block tables, and what else a step says about its sequences, as int32.

    Per sequence and group the cache keeps a table of its blocks, which grows by doubling, and each
    step copies it; beside them stand the step's query starts and context lengths. Token ids and
    positions count as activations.
    """
    table_entries = ceil_div(limits.max_context_tokens, layout.spec.block_tokens)
    per_sequence = len(layout.blocks) * (1 + _GROWTH) * table_entries + 2
    return (limits.max_sequences * per_sequence + 1) * _INT32_BYTES


def _check_asked(subject: Subject, asked_context_tokens: int) -> None:
    most_tokens = subject.most_context_tokens
    if asked_context_tokens <= most_tokens:
        return
    why = f"that {subject.model} was made for" if subject.window is None else "that tables reach"
    raise ConfigError(
        "--max-context",
        f"{asked_context_tokens} is more than the {most_tokens} tokens {why}; give {most_tokens} "
        "or less",
    )


def _context_error(
    layout: CacheLayout, asked: Limits, parts_for: PartsFor, budget: Budget, fitting_tokens: int
) -> BudgetError:
    needed_bytes = arena_needed_bytes(layout, asked)
    remedy = budget.remedy(parts_for(asked).total_bytes, needed_bytes)
    return BudgetError(
        f"--max-context {asked.max_context_tokens}: {fitting_tokens} tokens fit; "
        f"{asked.max_context_tokens} need {format_bytes(needed_bytes)} of KV memory. "
        f"Give {remedy}, or --max-context {fitting_tokens}"
    )


def _empty_error(
    subject: Subject,
    layout: CacheLayout,
    ceiling: Limits,
    parts_for: PartsFor,
    budget: Budget,
    asked_context_tokens: int | None,
) -> BudgetError:
    """Not one token fits: name the budget of a useful context, and the least there is."""
    block_tokens = min(layout.spec.block_tokens, ceiling.max_context_tokens)
    most_tokens = ceiling.max_context_tokens
    useful_tokens = asked_context_tokens or useful_context_tokens(subject, most_tokens)

    def needed(context_tokens: int) -> tuple[int, int]:
        limits = replace(ceiling, max_context_tokens=context_tokens)
        return parts_for(limits).total_bytes, arena_needed_bytes(layout, limits)

    least = replace(ceiling, max_context_tokens=block_tokens)
    parts_bytes, least_bytes = needed(block_tokens)
    kv_bytes = budget.kv_bytes(parts_bytes, most_usable_bytes(layout, least))
    have = (
        f"{format_bytes(kv_bytes)} of KV memory"
        if kv_bytes >= 0
        else f"{format_bytes(parts_bytes)} for weights, workspace and the other parts is "
        f"{format_bytes(-kv_bytes)} too much"
    )
    text = (
        f"the budget holds no sequence: {have}. Give {budget.remedy(*needed(useful_tokens))}, "
        f"which holds a conversation of {useful_tokens} tokens"
    )
    if asked_context_tokens is None and useful_tokens > block_tokens:
        least_remedy = budget.remedy(parts_bytes, least_bytes)
        text += f"; the least is {least_remedy}, for {block_tokens} tokens"
    return BudgetError(text)
