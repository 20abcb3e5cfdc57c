"""A model on devices with users: whether it fits, and how many users or tokens would.

All counts are of the fullest rank, since every rank must hold its part at the same time. A
conversation counts with the whole blocks it holds while decoding. `shared_tokens` at the start of
every conversation are held once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.device import Device, Headroom
from holdover.plan.sizing.weights import Weights
from holdover.units import ceil_div, largest

LONGEST_TOKENS = 2**40  # a memory that is not full by then never is
MOST_USERS = 2**40


@dataclass(frozen=True, slots=True)
class Scenario:
    """`whole_cache` is the model's, `rank_cache` what the fullest of `n_devices` stores of it."""

    whole_cache: Cache
    rank_cache: Cache
    weights: Weights
    device: Device
    n_devices: int
    headroom: Headroom
    users: int
    context_tokens: int
    shared_tokens: int = 0

    @classmethod
    def of(
        cls, whole_cache: Cache, weights: Weights, device: Device, n_devices: int,
        headroom: Headroom, users: int, context_tokens: int,
    ) -> Scenario:  # fmt: skip
        rank_cache = whole_cache.on_one_rank(n_devices)
        return cls(
            whole_cache, rank_cache, weights, device, n_devices, headroom, users, context_tokens
        )

    def with_cache(self, whole_cache: Cache, n_devices: int | None = None) -> Scenario:
        """The same with another cache, or over another number of devices."""
        count = n_devices or self.n_devices
        rank_cache = whole_cache.on_one_rank(count)
        return replace(self, whole_cache=whole_cache, rank_cache=rank_cache, n_devices=count)

    @property
    def block_tokens(self) -> int:
        return self.rank_cache.block_tokens

    @property
    def weights_bytes(self) -> int:
        """Of one device."""
        return ceil_div(self.weights.n_bytes, self.n_devices)

    @property
    def headroom_bytes(self) -> int:
        return self.headroom.of(self.device.memory_bytes)

    @property
    def cache_room_bytes(self) -> int:
        """What is left for the cache on each device; negative where the weights are too much."""
        return self.device.memory_bytes - self.weights_bytes - self.headroom_bytes

    @property
    def cache_bytes(self) -> int:
        """What all users hold on each device."""
        return self.held_bytes(self.users, self.context_tokens)

    @property
    def margin_bytes(self) -> int:
        """What stays free on each device; what is missing where negative."""
        return self.cache_room_bytes - self.cache_bytes

    @property
    def fits(self) -> bool:
        return self.margin_bytes >= 0

    def held_bytes(self, users: int, context_tokens: int) -> int:
        """`users` conversations of `context_tokens`, whose shared start is there once."""
        shared_bytes = self._shared_bytes(context_tokens)
        each = self.rank_cache.held_bytes(context_tokens) - shared_bytes
        return users * each + (shared_bytes if users else 0)

    def max_users(self) -> int:
        """Most conversations of `context_tokens` at once; 0 where not one fits."""
        if self.cache_room_bytes < self.held_bytes(1, self.context_tokens):
            return 0
        return largest(
            lambda n: self.held_bytes(n, self.context_tokens) <= self.cache_room_bytes, MOST_USERS
        )

    def max_context_tokens(self) -> int | None:
        """Longest conversations of `users` at once; None where memory sets no limit."""

        def fits(n: int) -> bool:
            return self.held_bytes(self.users, n) <= self.cache_room_bytes

        if self.cache_room_bytes < 0:
            return 0
        if fits(LONGEST_TOKENS):
            return None
        return largest(fits, LONGEST_TOKENS)

    def _shared_bytes(self, context_tokens: int) -> int:
        """Whole blocks of the shared start, of what keeps every token."""
        if self.shared_tokens == 0:
            return 0
        tokens = min(self.shared_tokens, context_tokens)
        tokens -= tokens % self.rank_cache.block_tokens
        parts = (part for part in self.rank_cache.parts if part.memory.grows)
        return sum(part.held_bytes(tokens) for part in parts)
