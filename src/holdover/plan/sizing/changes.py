"""Single changes to a scenario that does not fit: each with how far it has to go, and its cost.

A change file is not needed per idea: a change is a function from a scenario to the least of it
that makes the scenario fit, or None. `effort` orders them, the smallest change first: what loses
nothing, then what loses precision, then what forgets, then what serves less, then what is bought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from holdover.errors import ConfigError
from holdover.plan.sizing.device import Device
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.weights import requantised
from holdover.units import format_bytes, largest, round_up

SINK_TOKENS = 4
MOST_DEVICES = 64
HOST_LINK_BYTES_PER_S = 25_000_000_000  # PCIe 4.0 x16 as measured in practice
DISK_BYTES_PER_S = 3_000_000_000  # one NVMe drive, reading

# What a codec does to keys and values; the order is that of the effort.
KV_LOSS = {
    "fp8": "near 16 bit on most tasks; no scale, so that outliers are cut at 448",
    "int8": "near 16 bit on all tasks known; a scale for every token and head",
    "int4": "long reasoning and retrieval get worse, keys more than values: judge on your own task",
}
WEIGHT_LOSS = {
    "fp8": "weights in 8 bit: near 16 bit on most tasks; a checkpoint of that kind is needed",
    "int4": "weights in 4 bit: a few points on hard tasks; a checkpoint of that kind is needed",
}
KV_EFFORT = {"fp8": 2.0, "int8": 2.1, "int4": 4.0}
WEIGHT_EFFORT = {"fp8": 3.0, "int4": 5.0}


@dataclass(frozen=True, slots=True)
class Change:
    """`what` is done, `flag` shows the same in another run where one does, `cost` is what is
    lost. `scenario` is the one that fits."""

    name: str
    what: str
    flag: str | None
    cost: str
    effort: float
    scenario: Scenario


Devices = Sequence[Device]


def single_changes(base: Scenario, devices: Devices) -> list[Change]:
    """Every single change that makes `base` fit, the smallest first; `devices` are those that can
    be had instead."""
    found = [
        *_codecs(base),
        *_weights(base),
        *_shared_prefix(base),
        *_offload(base),
        *_window(base),
        *_fewer_users(base),
        *_shorter(base),
        *_more_devices(base),
        *_other_device(base, devices),
    ]
    return sorted(found, key=lambda change: change.effort)


def with_codec(base: Scenario, codec: str) -> Scenario | None:
    """None where the codec cannot store this model's planes, or saves nothing."""
    try:
        changed = base.with_cache(base.whole_cache.with_codec(codec))
    except ConfigError:
        return None
    return changed if changed.cache_bytes < base.cache_bytes else None


def with_weights(base: Scenario, dtype: str) -> Scenario | None:
    """None where the number of weights is not known, or nothing is saved."""
    changed = requantised(base.weights, dtype)
    if changed is None or changed.n_bytes >= base.weights.n_bytes:
        return None
    return replace(base, weights=changed)


def on_devices(base: Scenario, n_devices: int) -> Scenario:
    return base.with_cache(base.whole_cache, n_devices)


def with_window(base: Scenario, window_tokens: int) -> Scenario:
    """Sinks and a window in every layer of full attention."""
    return base.with_cache(base.whole_cache.windowed(window_tokens, SINK_TOKENS))


def _codecs(base: Scenario) -> Iterator[Change]:
    for codec, loss in KV_LOSS.items():
        changed = with_codec(base, codec)
        if changed is not None and changed.fits:
            saved = format_bytes(base.cache_bytes - changed.cache_bytes)
            yield Change(
                f"kv {codec}", f"store keys and values as {codec}: {saved} less on each device",
                f"--kv {codec}", loss, KV_EFFORT[codec], changed,
            )  # fmt: skip


def _weights(base: Scenario) -> Iterator[Change]:
    for dtype, loss in WEIGHT_LOSS.items():
        changed = with_weights(base, dtype)
        if changed is not None and changed.fits:
            saved = format_bytes(base.weights_bytes - changed.weights_bytes)
            yield Change(
                f"weights {dtype}", f"weights as {dtype}: {saved} less on each device",
                f"--weights {dtype}", loss, WEIGHT_EFFORT[dtype], changed,
            )  # fmt: skip


def _shared_prefix(base: Scenario) -> Iterator[Change]:
    """The fewest tokens at the start that all users must share."""
    if base.users < 2 or base.shared_tokens:
        return
    n_tokens = _least(
        lambda n: replace(base, shared_tokens=n).fits, base.context_tokens, base.block_tokens
    )
    if n_tokens is not None:
        share = n_tokens / base.context_tokens
        yield Change(
            "shared prefix", f"share the first {n_tokens:,} tokens among all users", None,
            f"nothing, if {share:.0%} of every conversation is the same text (system prompt, "
            "documents); prefix caching must be on",
            1, replace(base, shared_tokens=n_tokens),
        )  # fmt: skip


def _offload(base: Scenario) -> Iterator[Change]:
    for home in ("RAM", "disk"):
        change = offloaded(base, home)
        if change is not None:
            yield change


def offloaded(base: Scenario, home: str) -> Change | None:
    """As many conversations on the device as fit, the others in RAM or on disk."""
    on_device = min(base.max_users(), base.users)
    if on_device == 0 or on_device >= base.users:
        return None
    away = base.users - on_device
    each = base.rank_cache.held_bytes(base.context_tokens) * base.n_devices
    speed, extra = {"RAM": (HOST_LINK_BYTES_PER_S, 0.0), "disk": (DISK_BYTES_PER_S, 0.5)}[home]
    return Change(
        f"offload to {home}",
        f"keep {on_device:,} conversations on the device and {away:,} "
        f"{'in RAM' if home == 'RAM' else 'on disk'} ({format_bytes(away * each)})",
        None,
        f"at most {on_device:,} answer at the same time; a conversation comes back in "
        f"{each / speed:.2f} s at {speed / 1e9:.0f} GB/s (assumed)",
        1 + 5 * away / base.users + extra,
        replace(base, users=on_device),
    )


def _window(base: Scenario) -> Iterator[Change]:
    """The longest window, with sinks, at which it fits."""
    if not base.whole_cache.can_be_windowed():
        return
    block = base.block_tokens

    most = base.context_tokens // block - 1
    blocks = largest(lambda n: n == 0 or with_window(base, n * block).fits, most) if most > 0 else 0
    if blocks:
        n_tokens = blocks * block
        lost = base.context_tokens - n_tokens - SINK_TOKENS
        yield Change(
            "window", f"{SINK_TOKENS} sinks and a window of {n_tokens:,} tokens in every full "
            "attention layer", None,
            f"the {lost:,} tokens in between are forgotten; the model was not trained so",
            6, with_window(base, n_tokens),
        )  # fmt: skip


def _fewer_users(base: Scenario) -> Iterator[Change]:
    users = base.max_users()
    if 0 < users < base.users:
        yield Change(
            "fewer users", f"serve {users:,} users at a time", f"--users {users}",
            f"{base.users - users:,} of {base.users:,} have to wait",
            7 + (base.users - users) / base.users, replace(base, users=users),
        )  # fmt: skip


def _shorter(base: Scenario) -> Iterator[Change]:
    n_tokens = base.max_context_tokens()
    if n_tokens is not None and 0 < n_tokens < base.context_tokens:
        lost = (base.context_tokens - n_tokens) / base.context_tokens
        yield Change(
            "shorter context", f"end conversations at {n_tokens:,} tokens",
            f"--context {n_tokens}", f"{lost:.0%} of the length asked for",
            7 + lost, replace(base, context_tokens=n_tokens),
        )  # fmt: skip


def _more_devices(base: Scenario) -> Iterator[Change]:
    """The fewest devices of the same kind, tensor-parallel, that hold it."""
    n_devices = base.n_devices * 2
    while n_devices <= MOST_DEVICES:
        changed = on_devices(base, n_devices)
        if changed.fits:
            share = changed.cache_bytes * n_devices / max(1, base.cache_bytes * base.n_devices)
            repeats = f"; {share:.1f} times the cache in all, since heads repeat"
            repeated = repeats if share > 1.01 else ""
            yield Change(
                "more devices", f"{n_devices} x {base.device.name} instead of {base.n_devices}",
                f"--gpus {n_devices}",
                f"{n_devices // base.n_devices} times the price, and a fast link{repeated}",
                10 + n_devices / base.n_devices, changed,
            )  # fmt: skip
            return
        n_devices *= 2


def _other_device(base: Scenario, devices: Devices) -> Iterator[Change]:
    """The smallest device that holds it, as many of it as there are now; the smallest stands for
    the cheapest, since nobody publishes prices that last."""
    for rank, device in enumerate(devices, start=1):
        changed = replace(base, device=device)
        if changed.fits:
            count = "" if base.n_devices == 1 else f"{base.n_devices} x "
            yield Change(
                "other device", f"{count}{device.name} ({format_bytes(device.memory_bytes)})",
                f'--gpu "{device.name}"',
                f"another device: the smallest that holds it, number {rank} of {len(devices)} "
                f"of {device.vendor} by memory",
                11, changed,
            )  # fmt: skip
            return


def _least(fits: Callable[[int], bool], most: int, step: int) -> int | None:
    """Smallest multiple of `step` up to `most` with fits(n), where fits turns true once."""
    steps = most // step
    if steps < 1 or not fits(steps * step):
        return None
    not_fitting = largest(lambda n: not fits(n * step), steps)
    return round_up((not_fitting + 1) * step, step)
