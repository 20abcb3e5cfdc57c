"""How long a step takes, and a move between tiers: a model with few numbers, all of them stated.

    step = max(decode, prompt tokens / prefill rate) + cache that is read / bandwidth

`decode` is the time to read the weights once. Prompt tokens are computed at one rate, however long
the context. From a device, where no number is given:

    decode      weights that one token reads / (the data sheet's bandwidth x BANDWIDTH_SHARE)
    prefill     bandwidth x FLOPS_PER_BYTE / (2 x parameters that one token uses)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdover.errors import ConfigError
from holdover.plan.sizing.device import Device
from holdover.plan.sizing.offload import BYTES_PER_S
from holdover.plan.sizing.weights import Weights

BANDWIDTH_SHARE = 0.7  # of the data sheet's, that kernels reach
# Products a second, reached in prefill, for each byte a second: half of the 150 to 300 that the
# data sheets of an A100, an RTX 4090 and an H100 give in 16 bit.
FLOPS_PER_BYTE = 75


@dataclass(frozen=True, slots=True)
class StepCosts:
    """`notes` say where each number is from."""

    prefill_tokens_per_s: float
    decode_s: float
    kv_bytes_per_s: float
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.prefill_tokens_per_s > 0
        assert self.kv_bytes_per_s > 0

    def fixed_s(self, n_prompt_tokens: int) -> float:
        """Of a step, beside reading the cache."""
        return max(self.decode_s, n_prompt_tokens / self.prefill_tokens_per_s)

    @classmethod
    def of(
        cls,
        device: Device | None,
        weights: Weights | None,
        prefill_tokens_per_s: float | None,
        decode_ms: float | None,
    ) -> StepCosts:
        """Raises ConfigError where neither a flag nor the device and the weights say it."""
        for flag, value in (
            ("--prefill-tokens-per-s", prefill_tokens_per_s), ("--decode-ms", decode_ms),
        ):  # fmt: skip
            if value is not None and not 0 < value < 1e12:  # NaN neither
                raise ConfigError(flag, f"{value} is not above 0")
        if device is None or device.bandwidth_bytes_per_s is None:
            raise ConfigError("--gpu", "names no device with a bandwidth")
        bandwidth = device.bandwidth_bytes_per_s
        reached = bandwidth * BANDWIDTH_SHARE
        notes = [
            f"the cache is read at {reached / 1e9:,.0f} GB/s: {BANDWIDTH_SHARE:.0%} of the "
            f"{bandwidth / 1e9:,.0f} of {device.name}"
        ]
        if decode_ms is None:
            n_read = None if weights is None else weights.active_bytes
            if n_read is None:
                raise ConfigError("--decode-ms", _unknown("what a step reads of the weights"))
            decode_ms = 1e3 * n_read / reached
            notes.append(f"a step takes at least {decode_ms:.2f} ms: the weights read at that rate")
        else:
            notes.append(f"a step takes at least {decode_ms:g} ms: --decode-ms")
        if prefill_tokens_per_s is None:
            active = _active_parameters(weights)
            if active is None:
                raise ConfigError("--prefill-tokens-per-s", _unknown("its number of parameters"))
            prefill_tokens_per_s = bandwidth * FLOPS_PER_BYTE / (2 * active)
            why = f"{bandwidth * FLOPS_PER_BYTE / 1e12:,.0f} TFLOP/s over 2 x its parameters"
        else:
            why = "--prefill-tokens-per-s"
        notes.append(f"prompts are computed at {prefill_tokens_per_s:,.0f} tokens/s: {why}")
        return cls(prefill_tokens_per_s, decode_ms / 1e3, reached, tuple(notes))


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Bytes a second that come up from each kind of tier."""

    read_bytes_per_s: Mapping[str, float]

    @classmethod
    def of(cls, ram_bytes_per_s: int | None, disk_bytes_per_s: int | None) -> LinkCosts:
        given = {"ram": ram_bytes_per_s, "disk": disk_bytes_per_s}
        for kind, value in given.items():
            if value is not None and value < 1:
                raise ConfigError(f"--{kind}-bandwidth", "moves nothing; give bytes a second")
        return cls({kind: float(value or BYTES_PER_S[kind]) for kind, value in given.items()})


def _active_parameters(weights: Weights | None) -> float | None:
    if weights is None or weights.parameters is None:
        return None
    if weights.active_bytes is None or not weights.n_bytes:
        return float(weights.parameters)
    return weights.parameters * weights.active_bytes / weights.n_bytes


def _unknown(what: str) -> str:
    return f"must be given: nothing says {what}. Or say it with --weights or --assume"
