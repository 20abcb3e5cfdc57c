"""`--goal`: what would make it fit. Single changes first, then the cheapest combination.

Every combination of a codec, a type of weights, a number of devices and a shared start is tried,
and each that is not enough is completed by one change that goes as far as it must. Points are
added up; no part of the combination found can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdover.errors import ConfigError
from holdover.plan.sizing.changes import (
    LEAST_POINTS,
    Change,
    Changes,
    Devices,
    choices,
    remedies,
    single_changes,
)
from holdover.plan.sizing.scenario import Scenario

Combination = tuple[Change, ...]


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
            digits = value.strip()
            if not (digits.isascii() and digits.isdigit() and 1 <= int(digits[:20]) <= 10**12):
                raise ConfigError("--goal", f"{item!r}: {name} is a whole number of at least 1")
            found[name] = int(digits)
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
    combination: Combination | None


def answer_goal(base: Scenario, goal: Goal, devices: Devices) -> GoalAnswer:
    """What makes `goal` fit, from the scenario of the other flags."""
    base = replace(base, users=goal.users, context_tokens=goal.context_tokens)
    if base.fits:
        return GoalAnswer(goal, base, (), None)
    singles = tuple(single_changes(base, devices))
    return GoalAnswer(goal, base, singles, cheapest_combination(base, devices))


def points(changes: Combination) -> float:
    return sum(change.cost.points for change in changes)


def cheapest_combination(base: Scenario, devices: Devices) -> Combination | None:
    """Of at least two changes that fit together, none of which could be left out."""
    tried = {flags_of(changes): changes for changes in sorted(chosen(base), key=points)}
    best: Combination | None = None
    for changes in tried.values():
        if best is not None and points(changes) >= points(best):
            break
        fewer = [tried[flags] for flags in _without_one(changes)]
        if any(result(base, part).fits for part in fewer):
            continue
        if result(base, changes).fits:
            candidates = [changes] if len(changes) > 1 else []
        elif changes and (best is None or points(changes) + LEAST_POINTS < points(best)):
            candidates = list(completed(changes, base, devices))
        else:
            candidates = []
        for candidate in candidates:
            if best is not None and points(candidate) >= points(best):
                continue
            last = candidate[-1].flags
            others = (c for part in fewer for c in completed(part, base, devices))
            # The same last change may do without one of the parts, as a device of the next size.
            if candidate is changes or all(other[-1].flags != last for other in others):
                best = candidate
    return best


def chosen(base: Scenario) -> Iterator[Combination]:
    """Every combination of the choices, the empty one among them; the scenario of each part has
    the parts before it applied."""
    yield from _extended((), base, choices())


def completed(changes: Combination, base: Scenario, devices: Devices) -> Iterator[Combination]:
    """`changes` with one more that goes as far as it must."""
    scenario = result(base, changes)
    for remedy in remedies(devices):
        for change in remedy(scenario):
            if change.name not in {c.name for c in changes}:
                yield (*changes, change)


def _extended(
    done: Combination, scenario: Scenario, steps: tuple[Changes, ...]
) -> Iterator[Combination]:
    if not steps:
        yield done
        return
    yield from _extended(done, scenario, steps[1:])
    for change in steps[0](scenario):
        yield from _extended((*done, change), change.scenario, steps[1:])


def result(base: Scenario, changes: Combination) -> Scenario:
    return changes[-1].scenario if changes else base


Flags = tuple[tuple[str, str], ...]


def flags_of(changes: Combination) -> Flags:
    """Which changes they are, and how far each goes."""
    return tuple(flag for change in changes for flag in change.flags)


def _without_one(changes: Combination) -> Iterator[Flags]:
    return (flags_of(changes[:i] + changes[i + 1 :]) for i in range(len(changes)))
