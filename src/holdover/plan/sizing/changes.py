"""Changes to a scenario that does not fit: what each does, the flags that do it, what it costs.

A change is a function from a scenario to the scenarios that it could become. `choices` come in a
few fixed steps, and may not be enough; `remedies` go exactly as far as they must. The points of a
cost order them, and docs/plan-json.md says how they are given: what costs nothing first, then
precision, then waiting, then what is forgotten or not served, then money.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdover.config import DEFAULT_SINK_TOKENS
from holdover.errors import ConfigError
from holdover.plan.sizing.device import Device
from holdover.plan.sizing.offload import BYTES_PER_S, NAMES, Offload
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.weights import requantised
from holdover.units import GIB, MOST_BYTES, format_bytes, largest, round_up

MOST_DEVICES = 64
LEAST_POINTS = 1  # of any remedy


class Cost(NamedTuple):
    """`pays` is "condition", "quality", "latency", "service" or "money"."""

    pays: str
    points: float
    text: str


# What a narrower type does to keys and values, and to weights.
KV_COST = {
    "fp8": Cost("quality", 2.0, "near 16 bit on most tasks; no scale: outliers are cut at 448"),
    "int8": Cost("quality", 2.1, "near 16 bit on all tasks known; a scale per token and head"),
    "int4": Cost("quality", 4.0, "long reasoning and retrieval get worse, keys more than values: "
                 "judge on your own task"),
}  # fmt: skip
WEIGHT_COST = {
    "fp8": Cost("quality", 3.0, "near 16 bit on most tasks; a checkpoint of that kind is needed"),
    "int4": Cost("quality", 5.0, "a few points on hard tasks; a checkpoint of that kind is needed"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """`flags` are those that do the same in another run; `scenario` is what results."""

    name: str
    what: str
    flags: tuple[tuple[str, str], ...]
    cost: Cost
    scenario: Scenario


Devices = Sequence[Device]
Changes = Callable[[Scenario], Iterator[Change]]


def choices() -> tuple[Changes, ...]:
    """Those of a few fixed steps, in the order in which they are put together."""
    return (codecs, weights, more_devices, common_starts)


def remedies(devices: Devices) -> tuple[Changes, ...]:
    """Those that go as far as they must, and then fit; `devices` can be had instead."""

    def other_device(base: Scenario) -> Iterator[Change]:
        return _other_device(base, devices)

    return (shared_prefix, offload, window, fewer_users, shorter, other_device)


def single_changes(base: Scenario, devices: Devices) -> list[Change]:
    """Every single change that makes `base` fit, the cheapest first."""
    found = [c for change in (codecs, weights) for c in change(base) if c.scenario.fits]
    found += [c for c in more_devices(base) if c.scenario.fits][:1]
    found += [c for change in remedies(devices) for c in change(base)]
    return sorted(found, key=lambda change: change.cost.points)


def with_codec(base: Scenario, codec: str) -> Scenario | None:
    """None where the codec cannot store this model's planes, or saves nothing."""
    try:
        changed = base.with_cache(base.whole_cache.with_codec(codec))
    except ConfigError:
        return None
    n_tokens = base.context_tokens
    less = changed.rank_cache.held_bytes(n_tokens) < base.rank_cache.held_bytes(n_tokens)
    return changed if less else None


def with_window(base: Scenario, window_tokens: int) -> Scenario:
    """Sinks and a window in every layer of full attention."""
    return replace(
        base,
        whole_cache=base.whole_cache.windowed(window_tokens, DEFAULT_SINK_TOKENS),
        rank_cache=base.rank_cache.windowed(window_tokens, DEFAULT_SINK_TOKENS),
    )


def codecs(base: Scenario) -> Iterator[Change]:
    for codec, cost in KV_COST.items():
        changed = with_codec(base, codec)
        if changed is not None:
            n_tokens = base.context_tokens
            ratio = base.rank_cache.held_bytes(n_tokens) / changed.rank_cache.held_bytes(n_tokens)
            what = f"store keys and values as {codec}: a conversation is {ratio:.2f} times smaller"
            yield Change(f"kv {codec}", what, (("--kv", codec),), cost, changed)


def weights(base: Scenario) -> Iterator[Change]:
    for dtype, cost in WEIGHT_COST.items():
        narrow = requantised(base.weights, dtype)
        if narrow is None or narrow.n_bytes >= base.weights.n_bytes:
            continue
        changed = replace(base, weights=narrow)
        saved = format_bytes(base.weights_bytes - changed.weights_bytes)
        what = f"weights as {dtype}: {saved} less on each device"
        yield Change(f"weights {dtype}", what, (("--weights", dtype),), cost, changed)


def more_devices(base: Scenario) -> Iterator[Change]:
    """Twice, four times ... as many of the same kind, tensor-parallel."""
    n_devices = base.n_devices * 2
    while n_devices <= MOST_DEVICES:
        changed = base.with_cache(base.whole_cache, n_devices)
        times = n_devices // base.n_devices
        n_tokens = base.context_tokens
        stored = changed.rank_cache.held_bytes(n_tokens) * n_devices
        share = stored / max(1, base.rank_cache.held_bytes(n_tokens) * base.n_devices)
        repeats = f"; {share:.1f} times the cache in all, since heads or latents repeat"
        yield Change(
            "more devices", f"{n_devices} x {base.device.name} instead of {base.n_devices}",
            (("--gpus", str(n_devices)),),
            Cost("money", 10.0 + times,
                 f"{times} times the price, and a fast link{repeats if share > 1.01 else ''}"),
            changed,
        )  # fmt: skip
        n_devices *= 2


def common_starts(base: Scenario) -> Iterator[Change]:
    """A quarter or half of every conversation shared."""
    if base.users > 1 and not base.shared_tokens:
        for parts in (4, 2):
            n_tokens = base.context_tokens // parts // base.block_tokens * base.block_tokens
            if n_tokens:
                yield _shared(base, n_tokens)


def shared_prefix(base: Scenario) -> Iterator[Change]:
    """The fewest tokens at the start that all users must share."""
    if base.users < 2 or base.shared_tokens:
        return
    block = base.block_tokens
    most = (base.context_tokens - 1) // block
    if most and replace(base, shared_tokens=most * block).fits:
        too_few = largest(lambda n: not replace(base, shared_tokens=n * block).fits, most)
        yield _shared(base, (too_few + 1) * block)


def _shared(base: Scenario, n_tokens: int) -> Change:
    share = n_tokens / base.context_tokens
    return Change(
        "shared prefix", f"share the first {n_tokens:,} tokens among all users",
        (("--shared-prefix", str(n_tokens)),),
        Cost("condition", 1 + 5 * share,
             f"nothing, if {share:.0%} of every conversation is the same text (system prompt, "
             "documents); prefix caching must be on"),
        replace(base, shared_tokens=n_tokens),
    )  # fmt: skip


def offload(base: Scenario) -> Iterator[Change]:
    """As many conversations on the device as fit, the others in RAM or on disk."""
    resident = base.most_resident()
    if base.offload is not None or not 0 < resident < base.users:
        return
    for home, name in NAMES.items():
        if home == "ram" and base.device.unified:
            continue  # it is the same memory
        waiting = base.users - resident
        away_bytes = round_up(waiting * base.own_bytes * base.n_devices, GIB)
        if away_bytes > MOST_BYTES:
            continue  # more than --offload takes
        place = Offload(home, away_bytes)
        resume_s = place.resume_s(base.own_bytes, base.n_devices)
        yield Change(
            f"offload to {name}",
            f"keep {resident:,} conversations on the device, and {waiting:,} waiting "
            f"{'in RAM' if home == 'ram' else 'on disk'}",
            (("--offload", f"{home}:{away_bytes // GIB}GiB"),),
            Cost("latency", 1 + 5 * waiting / base.users + (0 if home == "ram" else 0.5),
                 f"at most {resident:,} answer at the same time; {format_bytes(away_bytes)} of "
                 f"{name}; a conversation comes back in {resume_s:.2f} s at "
                 f"{BYTES_PER_S[home] / 1e9:.0f} GB/s (assumed)"),
            replace(base, offload=place),
        )  # fmt: skip


def window(base: Scenario) -> Iterator[Change]:
    """The longest window, with sinks, at which it fits."""
    block, most = base.block_tokens, (base.context_tokens - 1) // base.block_tokens
    if not most or not base.whole_cache.can_be_windowed() or not with_window(base, block).fits:
        return
    n_tokens = block * largest(lambda n: with_window(base, max(1, n) * block).fits, most)
    lost = base.context_tokens - n_tokens - DEFAULT_SINK_TOKENS
    if lost > 0:
        yield Change(
            "window", f"{DEFAULT_SINK_TOKENS} sinks and a window of {n_tokens:,} tokens in "
            "every full attention layer",
            (("--window", str(n_tokens)), ("--sinks", str(DEFAULT_SINK_TOKENS))),
            Cost("quality", 6 + lost / base.context_tokens,
                 f"the {lost:,} tokens in between are forgotten; the model was not trained so"),
            with_window(base, n_tokens),
        )  # fmt: skip


def fewer_users(base: Scenario) -> Iterator[Change]:
    users = base.max_users()
    if 0 < users < base.users:
        turned_away = base.users - users
        yield Change(
            "fewer users", f"serve {users:,} users at a time", (("--users", str(users)),),
            Cost("service", 7 + turned_away / base.users,
                 f"{turned_away:,} of {base.users:,} have to wait"),
            replace(base, users=users),
        )  # fmt: skip


def shorter(base: Scenario) -> Iterator[Change]:
    n_tokens = base.max_context_tokens()
    least = max(1, base.shared_tokens)  # a shared start is no longer than the whole
    if n_tokens is not None and least <= n_tokens < base.context_tokens:
        lost = (base.context_tokens - n_tokens) / base.context_tokens
        yield Change(
            "shorter context", f"end conversations at {n_tokens:,} tokens",
            (("--context", str(n_tokens)),),
            Cost("service", 7 + lost, f"{lost:.0%} of the length asked for"),
            replace(base, context_tokens=n_tokens),
        )  # fmt: skip


def _other_device(base: Scenario, devices: Devices) -> Iterator[Change]:
    """The smallest device that holds it, as many of it as there are now; memory stands for the
    price, since nobody publishes prices that last."""
    for device in devices:
        changed = replace(base, device=device)
        if not changed.fits:
            continue
        count = "" if base.n_devices == 1 else f"{base.n_devices} x "
        memory = device.memory_bytes / base.device.memory_bytes
        speed, now = device.bandwidth_bytes_per_s, base.device.bandwidth_bytes_per_s
        fast = f" and {speed / now:.1f} times the bandwidth" if speed and now else ""
        yield Change(
            "other device", f"{count}{device.name} ({format_bytes(device.memory_bytes)})",
            (("--gpu", device.name),),
            Cost("money", 10 + memory,
                 f"the smallest card of {device.vendor} that holds it: {memory:.1f} times the "
                 f"memory{fast}"),
            changed,
        )  # fmt: skip
        return
