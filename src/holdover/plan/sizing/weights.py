"""Bytes of the weights: as stored in files, as counted by the geometry, or as asked for.

`active_bytes` are those that one token's step reads: of a mixture of experts only some. It is
None where nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from holdover.errors import ConfigError
from holdover.geometry.sizing import Assumption, Parameters
from holdover.units import parse_bytes

if TYPE_CHECKING:
    from holdover.geometry.sizing.weights import ModelWeights

# Bits of one parameter; below 8 bit with the scales that usually go with it.
BITS: dict[str, Fraction] = {
    "fp32": Fraction(32), "bf16": Fraction(16), "fp16": Fraction(16), "fp8": Fraction(8),
    "int8": Fraction(8), "q8_0": Fraction(17, 2), "q6_k": Fraction(105, 16),
    "q5_1": Fraction(6), "q5_0": Fraction(11, 2), "q5_k": Fraction(11, 2), "q4_1": Fraction(5),
    "q4_0": Fraction(9, 2), "q4_k": Fraction(9, 2), "nvfp4": Fraction(9, 2),
    "mxfp4": Fraction(17, 4), "int4": Fraction(17, 4),
}  # fmt: skip


_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


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
    """Weights in files: their bytes, and the number of elements where the headers were read.

    `active_bytes` is None where it is the same share of all bytes as of all parameters; `parts`
    says which are in which type, where that is known and they are not in one.
    """

    n_bytes: int
    parameters: int | None
    dtype: str
    source: str
    active_bytes: int | None = None
    parts: str | None = None


def weights_of(
    stored: StoredWeights | None,
    parameters: Parameters | None,
    config: Mapping[str, Any],
    stored_dtype: str | None,
    asked: str | None,
    counted: ModelWeights | None = None,
) -> tuple[Weights | None, tuple[Assumption, ...]]:
    """The weights, with what had to be assumed; None where nothing says how many there are, or in
    a type that is not known: the cache can be sized all the same."""
    if asked is not None and asked.lower() not in BITS:
        return _sized(parse_weights(asked), parameters), ()
    if asked is None and stored is not None:
        share = _active_share(parameters)
        active = stored.active_bytes
        if active is None and share is not None:
            active = int(stored.n_bytes * share)
        count = stored.parameters or (parameters.count if parameters else None)
        found = Weights(stored.n_bytes, stored.dtype, stored.source, count, active)
        if stored.parts is None:
            return found, ()
        return found, (Assumption("weights dtype", stored.parts, "as published"),)
    if parameters is None and stored is not None and stored.parameters is not None:
        parameters = Parameters(stored.parameters, stored.parameters, "file")
    if parameters is None:
        return None, ()
    if asked is not None:
        return in_dtype(parameters, asked.lower(), "--weights"), ()
    if counted is not None:
        return _as_published(counted, config, stored_dtype)
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


def _as_published(
    counted: ModelWeights, config: Mapping[str, Any], stored_dtype: str | None
) -> tuple[Weights | None, tuple[Assumption, ...]]:
    """Each matrix in the type in which the config says that it is stored."""
    from holdover.geometry.sizing.weights import form_of

    form = form_of(config, stored_dtype)
    if form is None:
        return None, ()
    n_bytes, active_bytes = form.n_bytes(counted)
    parameters = counted.parameters
    source = f"parameters ({parameters.source}) x {form.name}"
    weights = Weights(n_bytes, form.name, source, parameters.count, active_bytes)
    if form.is_quantised:
        return weights, (Assumption("weights dtype", form.text(counted), "quantization_config"),)
    if stored_dtype is None:
        return weights, (Assumption("weights dtype", form.name, "the file does not say it"),)
    return weights, ()


def _stated_dtype(config: Mapping[str, Any], stored: str | None) -> tuple[str, str | None] | None:
    """(type, why it had to be assumed); None where what is stated is not known."""
    if stored is not None and not config:  # as the catalogue, which says it in its own names
        known = stored if stored in BITS else _STORED.get(stored)
        return None if known is None else (known, None)
    from holdover.geometry.sizing.weights import form_of

    form = form_of(config, stored)
    if form is None or form.name not in BITS:
        return None
    if form.is_quantised:
        return form.name, "quantization_config, taken for all weights"
    return form.name, None if stored is not None else "the file does not say it"
