"""Why a prompt was reused up to a point and no further.

Nothing is said of other tenants but that something was done for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from holdover.cache.blocks import TOKEN_BYTES
from holdover.cache.costs import Decision
from holdover.cache.evictions import Eviction, Evictions
from holdover.cache.lifting import Lift
from holdover.cache.prefix import common_tokens, token_bytes
from holdover.cache.sequence import SequenceCache

Reason = Literal["all", "nothing", "new", "differs", "evicted", "slower", "failed", "no_room"]
"""all: everything but the token that has to be computed · nothing: no prefix of this tenant's is
kept · new: what was kept ends here · differs: what was kept goes on with another token · evicted ·
slower, failed: a load from a tier that was not made, or did not end well · no_room: for the copy of
a partly filled block"""


@dataclass(frozen=True, slots=True)
class Reuse:
    """`position` is the first token that was not reused, whatever the reason."""

    prompt_tokens: int
    reused_tokens: int
    from_tiers: dict[str, int]  # tokens by where they came from, "arena" included
    reason: Reason
    kept_token: int | None = None  # differs: what was kept at `position`; the prompt has another
    prompt_token: int | None = None
    eviction: Eviction | None = None
    decision: Decision | None = None
    problem: str | None = None
    # Of the reused ones: a tier gave them back requantised, or they were computed from such.
    requantised_tokens: int = 0
    # The first token follows from the row that the same prompt ended with before.
    prompt_end_was_kept: bool = False

    @property
    def position(self) -> int:
        return self.reused_tokens


def explained(
    sequence: SequenceCache,
    tokens: Sequence[int],
    lift: Lift | None,
    evictions: Evictions,
    runs_after: Callable[[bytes], list[bytes]],
    block_tokens: int,
) -> Reuse:
    """Of a sequence just admitted with `tokens`, which waited for `lift`.

    `runs_after` are all runs that are kept after a prefix, by its key.
    """
    n_reused, n_usable = sequence.n_tokens, len(tokens) - 1
    n_loaded = 0 if lift is None else max(0, n_reused - lift.n_matched)
    from_tiers = {"arena": n_reused - n_loaded}
    if lift is not None and n_loaded:
        from_tiers[lift.decision.tier] = n_loaded
    n_requantised = sequence.requantised_tokens
    reuse = partial(Reuse, len(tokens), n_reused, from_tiers, requantised_tokens=n_requantised)
    if n_reused == n_usable:
        return reuse("all")
    if lift is not None and n_reused < lift.n_tokens and not lift.decision.pays:
        return reuse("slower", decision=lift.decision)
    if lift is not None and n_reused < lift.n_tokens and lift.problem is not None:
        return reuse("failed", problem=lift.problem)
    n_full, n_tail = divmod(n_reused, block_tokens)
    parent = sequence.keys[n_full]
    rest = token_bytes(tokens[n_full * block_tokens : -1][:block_tokens])
    eviction = evictions.after(parent, sequence.tenant)
    if eviction is not None and common_tokens(eviction.tokens, rest) > n_tail:
        return reuse("evicted", eviction=eviction)
    runs = runs_after(parent)
    reason, kept = compared(rest, n_tail, runs)
    if not runs and not n_reused:
        reason = "nothing"
    return reuse(reason, kept, tokens[n_reused] if reason == "differs" else None)


def compared(rest: bytes, n_reused: int, runs: Iterable[bytes]) -> tuple[Reason, int | None]:
    """Why of the runs kept at one place only `n_reused` tokens of `rest` were taken.

    Returns the kept token that differs, too.
    """
    best = max(runs, key=lambda run: common_tokens(run, rest), default=b"")
    n_common = common_tokens(best, rest)
    if n_common > n_reused:
        return "no_room", None
    at = n_common * TOKEN_BYTES
    if at >= len(best):
        return "new", None
    return "differs", int.from_bytes(best[at : at + TOKEN_BYTES], "little")
