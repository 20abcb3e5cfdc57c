"""A model on devices with users: whether it fits, and how many users or tokens would.

All counts are of the fullest rank, since every rank must hold its part at the same time. A
conversation counts with the whole blocks it holds while decoding. `shared_tokens` at the start of
every conversation are held once. With `offload` as many conversations as fit are on the device,
and the others wait where it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.device import Device, Headroom
from holdover.plan.sizing.offload import Offload
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
    offload: Offload | None = None

    @classmethod
    def of(
        cls, whole_cache: Cache, weights: Weights, device: Device, n_devices: int,
        headroom: Headroom, users: int, context_tokens: int, shared_tokens: int = 0,
        offload: Offload | None = None,
    ) -> Scenario:  # fmt: skip
        rank_cache = whole_cache.on_one_rank(n_devices)
        return cls(
            whole_cache, rank_cache, weights, device, n_devices, headroom, users, context_tokens,
            shared_tokens, offload,
        )  # fmt: skip

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
    def resident_users(self) -> int:
        """Users on the device at the same time: all, or with offload as many as fit."""
        if self.offload is None:
            return self.users
        return min(self.users, max(1, self.most_resident()))

    @property
    def cache_bytes(self) -> int:
        """What the users on the device hold, on each device."""
        return self.held_bytes(self.resident_users, self.context_tokens)

    @property
    def waiting_bytes(self) -> int:
        """What the other users hold in RAM or on disk, of all devices."""
        return (self.users - self.resident_users) * self.own_bytes * self.n_devices

    @property
    def own_bytes(self) -> int:
        """What one conversation holds beside the shared start, on each device."""
        return self.rank_cache.own_bytes(self.context_tokens, self.shared_tokens)

    @property
    def margin_bytes(self) -> int:
        """What stays free on each device; what is missing where negative."""
        return self.cache_room_bytes - self.cache_bytes

    @property
    def offload_margin_bytes(self) -> int:
        """The same of the RAM or disk where conversations wait."""
        return 0 if self.offload is None else self.offload.n_bytes - self.waiting_bytes

    @property
    def missing_bytes(self) -> int:
        """On each device, or where the conversations wait; 0 where all fit."""
        return max(0, -self.margin_bytes, -self.offload_margin_bytes)

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    def held_bytes(self, users: int, context_tokens: int) -> int:
        """`users` conversations of `context_tokens`, whose shared start is there once."""
        return self.rank_cache.held_by(users, context_tokens, self.shared_tokens)

    def most_resident(self) -> int:
        """Most conversations of `context_tokens` on the device at once; 0 where not one fits."""
        room, tokens = self.cache_room_bytes, self.context_tokens
        if room < self.held_bytes(1, tokens):
            return 0
        own = self.own_bytes
        return MOST_USERS if own == 0 else 1 + (room - self.held_bytes(1, tokens)) // own

    def max_users(self) -> int:
        """Most conversations of `context_tokens`, those that wait elsewhere included."""
        resident = self.most_resident()
        if resident == 0 or self.offload is None or self.own_bytes == 0:
            return resident
        return resident + self.offload.n_bytes // (self.own_bytes * self.n_devices)

    def max_context_tokens(self) -> int | None:
        """Longest conversations of `users` at once; None where memory sets no limit."""

        def fits(n: int) -> bool:
            return replace(self, context_tokens=n).fits

        if self.cache_room_bytes < 0:
            return 0
        if fits(LONGEST_TOKENS):
            return None
        return largest(fits, LONGEST_TOKENS)
