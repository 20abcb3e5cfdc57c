"""The technique ladder: what each step adds to `holdover serve`, and the chat it is shown by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdover.bench.conversations import Conversations
from holdover.bench.workload import check_numbers


@dataclass(frozen=True, slots=True)
class Technique:
    """A step: what it adds to the flags of the step before."""

    name: str
    adds: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Our own engine on one chat, with techniques added one at a time."""

    model: str = "smollm2"
    """As for `holdover serve`."""
    kv_memory: str = "256MiB"
    """Bytes of the KV arena on every step."""
    max_context: int = 8192
    """Longest context of a conversation, which contiguous reservation sets aside for each."""
    users: int = 16
    """Users at once."""
    turns: int = 2
    """Turns of each user."""
    system_words: int = 64
    """Words of the system prompt that all users share."""
    words: int = 32
    """Words of each message."""
    output_tokens: int = 128
    """Tokens of each answer."""
    window: int = 512
    """Tokens that stay readable on the step with a window, beside 4 first ones."""
    disk: str = "2GiB"
    """The most that the disk tier holds, in a temporary folder."""
    threads: int | None = None
    """Compute threads; all cores this process may use when not given."""

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def about(self) -> str:
        return f"{self.model} with {self.kv_memory} of KV, one technique more on each step"

    @property
    def chat(self) -> Conversations:
        return Conversations(
            users=self.users, turns=self.turns, system_words=self.system_words,
            first_words=self.words, words=self.words, output_tokens=self.output_tokens,
        )  # fmt: skip

    def techniques(self, disk_folder: str) -> list[Technique]:
        return [
            Technique("contiguous", {"reservation": "contiguous", "kv": "bf16"}),
            Technique("paged", {"reservation": "paged"}),
            Technique("+ prefix reuse", {"reservation": "shared"}),
            Technique("+ int8", {"kv": "int8"}),
            Technique("+ int4", {"kv": "int4"}),
            Technique("+ window", {"window": self.window}),
            Technique("+ disk tier", {"tiers": (f"disk:{disk_folder}:{self.disk}",)}),
        ]

    def steps(self, disk_folder: str) -> list[tuple[str, dict[str, Any]]]:
        """Name, and settings of `holdover serve`: each step has all that those before it added."""
        asked: dict[str, Any] = {
            "model": self.model, "kv_memory": self.kv_memory, "max_context": self.max_context,
        }  # fmt: skip
        asked |= {} if self.threads is None else {"threads": self.threads}
        found = []
        for step in self.techniques(disk_folder):
            asked = asked | dict(step.adds)
            found.append((step.name, asked))
        return found
