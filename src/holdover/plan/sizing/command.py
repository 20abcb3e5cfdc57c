"""The command line that asks for a plan, so that a change can be tried by typing what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from shlex import quote
from typing import Any

from holdover.config import Config, flag
from holdover.plan.sizing.question import Question

# How an answer is printed, what is asked for by the answer itself, and questions of their own that
# a change may not go with: nothing that a goal answers depends on them.
_LEFT_OUT = ("goal", "csv", "html", "lengths", "engine")


@dataclass(frozen=True, slots=True)
class Command:
    """`flags` are those that were typed, in the order of their fields."""

    model: str
    flags: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, model: str, question: Question, settings: Mapping[str, Any]) -> Command:
        defaults = {f.name: f.default for f in (*fields(Config), *fields(Question))}
        asked = {f.name: getattr(question, f.name) for f in fields(question)}
        typed = []
        for name, value in (asked | dict(settings)).items():
            if value == defaults[name] or name in _LEFT_OUT:
                continue
            values = value if isinstance(value, tuple) else (value,)
            typed += [(flag(name), "" if one is True else str(one)) for one in values]
        return cls(model, tuple(typed))

    def text(self, changed: Iterable[tuple[str, str]] = ()) -> str:
        """With `changed` flags in place of those typed, the last one of each standing."""
        new = dict(changed)
        flags = [*((name, value) for name, value in self.flags if name not in new), *new.items()]
        words = (quote(word) for pair in flags for word in pair if word)
        return " ".join(["holdover plan", quote(self.model), *words])
