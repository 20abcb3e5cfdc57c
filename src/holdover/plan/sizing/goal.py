"""`--goal`: what would make it fit. Single changes first, then the cheapest combination.

A combination is searched exhaustively over the changes that can stand together: a codec, a type of
weights, a window of half the context, more devices, and offload of what is left over. Its effort is
the sum of its parts' efforts, so that two losses of precision come before twice the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from holdover.errors import ConfigError
from holdover.plan.sizing.changes import (
    KV_EFFORT,
    KV_LOSS,
    SINK_TOKENS,
    WEIGHT_EFFORT,
    WEIGHT_LOSS,
    Change,
    Devices,
    offloaded,
    on_devices,
    single_changes,
    with_codec,
    with_weights,
    with_window,
)
from holdover.plan.sizing.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Goal:
    """Users and context that must fit together."""

    users: int
    context_tokens: int

    @classmethod
    def parse(cls, text: str) -> Goal:
        """ "users=50,context=4000", both needed."""
        found: dict[str, int] = {}
        for item in text.split(","):
            name, _, value = item.partition("=")
            name = name.strip()
            if name not in ("users", "context"):
                raise ConfigError("--goal", f"{item!r}: give users=50,context=4000")
            if not value.strip().isdigit() or int(value) < 1:
                raise ConfigError("--goal", f"{item!r}: {name} is a whole number of at least 1")
            found[name] = int(value)
        if len(found) < 2:
            raise ConfigError("--goal", f"{text!r}: give both, as users=50,context=4000")
        return cls(found["users"], found["context"])


@dataclass(frozen=True, slots=True)
class GoalAnswer:
    """`combination` are the parts of the cheapest one of two or more changes, with the scenario
    that results; None where no combination fits, or the goal is reached as it is."""

    goal: Goal
    base: Scenario
    singles: tuple[Change, ...]
    combination: tuple[Change, ...] | None


def answer_goal(base: Scenario, goal: Goal, devices: Devices) -> GoalAnswer:
    """What makes `goal` fit, from the scenario of the other flags."""
    base = replace(base, users=goal.users, context_tokens=goal.context_tokens)
    if base.fits:
        return GoalAnswer(goal, base, (), None)
    return GoalAnswer(goal, base, tuple(single_changes(base, devices)), cheapest_combination(base))


def cheapest_combination(base: Scenario) -> tuple[Change, ...] | None:
    """Of at least two changes that fit together."""
    found = (c for c in combinations(base) if len(c) > 1 and c[-1].scenario.fits)
    return min(found, key=lambda changes: sum(c.effort for c in changes), default=None)


Step = Callable[[Scenario], Iterator[Change]]


def combinations(base: Scenario) -> Iterator[tuple[Change, ...]]:
    """Every combination; the scenario of each part has the parts before it applied."""
    yield from _extended((), base, (_codecs, _windows, _devices, _weights, _away))


def _extended(
    done: tuple[Change, ...], scenario: Scenario, steps: tuple[Step, ...]
) -> Iterator[tuple[Change, ...]]:
    if not steps:
        yield done
        return
    yield from _extended(done, scenario, steps[1:])
    for change in steps[0](scenario):
        yield from _extended((*done, change), change.scenario, steps[1:])


def _codecs(scenario: Scenario) -> Iterator[Change]:
    for codec, loss in KV_LOSS.items():
        changed = with_codec(scenario, codec)
        if changed is not None:
            what = f"store keys and values as {codec}"
            yield Change(f"kv {codec}", what, f"--kv {codec}", loss, KV_EFFORT[codec], changed)


def _windows(scenario: Scenario) -> Iterator[Change]:
    block = scenario.block_tokens
    n_tokens = scenario.context_tokens // 2 // block * block
    if n_tokens and scenario.whole_cache.can_be_windowed():
        yield Change(
            "window", f"{SINK_TOKENS} sinks and a window of {n_tokens:,} tokens", None,
            "what lies between is forgotten; the model was not trained so", 6,
            with_window(scenario, n_tokens),
        )  # fmt: skip


def _devices(scenario: Scenario) -> Iterator[Change]:
    for factor in (2, 4, 8):
        count = scenario.n_devices * factor
        yield Change(
            "more devices", f"{count} x {scenario.device.name}", f"--gpus {count}",
            f"{factor} times the price, and a fast link", 10 + factor,
            on_devices(scenario, count),
        )  # fmt: skip


def _weights(scenario: Scenario) -> Iterator[Change]:
    for dtype, loss in WEIGHT_LOSS.items():
        changed = with_weights(scenario, dtype)
        if changed is not None:
            yield Change(
                f"weights {dtype}", f"weights as {dtype}", f"--weights {dtype}", loss,
                WEIGHT_EFFORT[dtype], changed,
            )  # fmt: skip


def _away(scenario: Scenario) -> Iterator[Change]:
    change = offloaded(scenario, "RAM")
    if change is not None:
        yield change
