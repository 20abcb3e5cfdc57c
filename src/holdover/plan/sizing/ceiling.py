"""The most decode steps a second that memory bandwidth allows: an upper bound, never a forecast.

A step reads the weights that one token needs and the cache of every conversation at least once;
compute, kernels, communication and more experts than one token's only make it slower. Rows that
sparse attention may skip are left out, and a shared start is read once, so that the bound holds
for engines that do that as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.scenario import Scenario
from holdover.spec.memory import Kind
from holdover.units import ceil_div


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One decode step of `users` conversations, on each device."""

    users: int
    context_tokens: int
    weights_read_bytes: int
    cache_read_bytes: int
    bandwidth_bytes_per_s: int

    @property
    def step_s(self) -> float:
        """The least time of a step."""
        return (self.weights_read_bytes + self.cache_read_bytes) / self.bandwidth_bytes_per_s

    @property
    def tokens_per_s(self) -> float:
        """At most, over all users."""
        return self.users / self.step_s if self.step_s else float("inf")


def decode_ceiling(scenario: Scenario) -> Ceiling | None:
    """Of the users asked for, or as many of them as fit. None where none fits, or where the
    bandwidth or what a token reads of the weights is not known."""
    weights, device = scenario.weights, scenario.device
    users = min(scenario.users, scenario.most_resident())
    if device.bandwidth_bytes_per_s is None or weights.active_bytes is None or users == 0:
        return None
    return Ceiling(
        users,
        scenario.context_tokens,
        ceil_div(weights.active_bytes, scenario.n_devices),
        read_bytes(scenario.rank_cache, users, scenario.context_tokens, scenario.shared_tokens),
        device.bandwidth_bytes_per_s,
    )


def read_bytes(cache: Cache, users: int, context_tokens: int, shared_tokens: int = 0) -> int:
    """Least bytes of the cache that a step of `users` conversations reads; a shared start can be
    read once for all of them."""
    sparse = any(part.memory.kind is Kind.INDEXER for part in cache.parts)
    total = 0
    for part in cache.parts:
        if sparse and part.memory.kind is Kind.ATTENTION and part.memory.grows:
            continue
        each = part.logical_bytes(context_tokens)
        shared = part.logical_bytes(min(shared_tokens, context_tokens)) if part.memory.grows else 0
        total += users * (each - shared) + shared
    return total
