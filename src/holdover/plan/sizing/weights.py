"""Bytes of the weights: as stored in files, as counted by the geometry, or as asked for.

`active_bytes` are those that one token's step reads: of a mixture of experts only some. It is
None where nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing import Assumption, Parameters
from holdover.units import parse_bytes

# Bits of one parameter; below 8 bit with the scales that usually go with it.
BITS: dict[str, Fraction] = {
    "fp32": Fraction(32), "bf16": Fraction(16), "fp16": Fraction(16), "fp8": Fraction(8),
    "int8": Fraction(8), "q8_0": Fraction(17, 2), "q6_k": Fraction(105, 16),
    "q5_1": Fraction(6), "q5_0": Fraction(11, 2), "q5_k": Fraction(11, 2), "q4_1": Fraction(5),
    "q4_0": Fraction(9, 2), "q4_k": Fraction(9, 2), "nvfp4": Fraction(9, 2),
    "mxfp4": Fraction(17, 4), "int4": Fraction(17, 4),
}  # fmt: skip
_STORED = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "float8_e4m3fn": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weights:
    """`source` says where the size is from: files, parameters x bits, or --weights."""

    n_bytes: int
    dtype: str
    source: str
    parameters: int | None
    active_bytes: int | None


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights in files: their bytes, and the number of elements where the headers were read."""

    n_bytes: int
    parameters: int | None
    dtype: str
    source: str


def weights_of(
    stored: StoredWeights | None,
    parameters: Parameters | None,
    config: Mapping[str, Any],
    stored_dtype: str | None,
    asked: str | None,
) -> tuple[Weights | None, tuple[Assumption, ...]]:
    """The weights, with what had to be assumed; None where nothing says how many there are, or in
    a type that is not known: the cache can be sized all the same."""
    if asked is not None and asked.lower() not in BITS:
        return _sized(parse_weights(asked), parameters), ()
    if asked is None and stored is not None:
        share = _active_share(parameters)
        active = None if share is None else int(stored.n_bytes * share)
        count = stored.parameters or (parameters.count if parameters else None)
        return Weights(stored.n_bytes, stored.dtype, stored.source, count, active), ()
    if parameters is None and stored is not None and stored.parameters is not None:
        parameters = Parameters(stored.parameters, stored.parameters, "file")
    if parameters is None:
        return None, ()
    if asked is not None:
        return in_dtype(parameters, asked.lower(), "--weights"), ()
    stated = _stated_dtype(config, stored_dtype)
    if stated is None:
        return None, ()
    dtype, why = stated
    found = in_dtype(parameters, dtype, f"parameters ({parameters.source}) x {dtype}")
    return found, () if why is None else (Assumption("weights dtype", dtype, why),)


def in_dtype(parameters: Parameters, dtype: str, source: str) -> Weights:
    """All parameters in one type; norms and embeddings often stay wider, so this is a little low
    for the narrow ones."""
    return Weights(
        _bytes(parameters.count, dtype), dtype, source, parameters.count,
        _bytes(parameters.active, dtype),
    )  # fmt: skip


def requantised(weights: Weights, dtype: str) -> Weights | None:
    """The same weights in another type; None where their number is not known."""
    if weights.parameters is None:
        return None
    n_bytes = _bytes(weights.parameters, dtype)
    active = None
    if weights.active_bytes is not None:
        active = weights.active_bytes * n_bytes // max(1, weights.n_bytes)
    return replace(weights, n_bytes=n_bytes, dtype=dtype, source="as a change", active_bytes=active)


def parse_weights(text: str) -> int:
    """A size; what is neither a size nor a type is refused with the types that there are."""
    try:
        return parse_bytes(text, "--weights")
    except ConfigError:
        raise ConfigError(
            "--weights", f"{text!r} is neither a size such as 16GB nor one of: {', '.join(BITS)}"
        ) from None


def _bytes(parameters: int, dtype: str) -> int:
    bits = BITS[dtype] * parameters
    return -(-bits.numerator // (8 * bits.denominator))


def _sized(n_bytes: int, parameters: Parameters | None) -> Weights:
    share = _active_share(parameters)
    count = None if parameters is None else parameters.count
    active = None if share is None else int(n_bytes * share)
    return Weights(n_bytes, "as given", "--weights", count, active)


def _active_share(parameters: Parameters | None) -> Fraction | None:
    return None if parameters is None else Fraction(parameters.active, parameters.count)


def _stated_dtype(config: Mapping[str, Any], stored: str | None) -> tuple[str, str | None] | None:
    """(type, why it had to be assumed); None where what is stated is not known."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        text = config.get("text_config")
        found = text.get("quantization_config") if isinstance(text, Mapping) else None
    if isinstance(found, Mapping):
        quantised = _quantisation(found)
        if quantised is None:
            return None
        return quantised, "quantization_config, taken for all weights"
    if stored is None:
        return "bf16", "the file does not say it"
    known = stored if stored in BITS else _STORED.get(stored)
    return None if known is None else (known, None)


def _quantisation(found: Mapping[str, Any]) -> str | None:
    words = f"{found.get('quant_method')} {found.get('quant_algo')} {found.get('format')}".lower()
    for word in ("nvfp4", "mxfp4", "fp8"):
        if word in words:
            return word
    bits = found.get("bits", found.get("w_bit"))
    if bits is None and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        bits = 4 if found.get("load_in_4bit") else 8
    if bits is None:
        bits = _group_bits(found.get("config_groups"))
    return {4: "int4", 8: "int8"}.get(bits) if isinstance(bits, int) else None


def _group_bits(groups: Any) -> Any:
    if isinstance(groups, Mapping) and groups:
        first = next(iter(groups.values()))
        weights = first.get("weights") if isinstance(first, Mapping) else None
        return weights.get("num_bits") if isinstance(weights, Mapping) else None
    return None
