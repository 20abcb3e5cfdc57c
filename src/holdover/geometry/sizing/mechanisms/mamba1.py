"""Mamba 1 (Jamba, Falcon-Mamba): a state per channel, and the convolution's last inputs."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0

_TYPES = ("mamba", "falcon_mamba", "jamba", "zamba")


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type in _TYPES


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    channels = _channels(reader)
    reader.ignore("n_mamba_heads")
    size = reader.integer("mamba_d_state", "state_size")
    kernel = reader.integer("mamba_d_conv", "conv_kernel", minimum=2)
    dtype = stated_dtype(reader, "mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    return (
        state("mamba", layer, channels, size, dtype),
        state("mamba convolution", layer, channels, kernel - 1),
    )


def _channels(reader: Reader) -> int:
    if reader.model_type in ("jamba", "zamba"):  # their intermediate_size is the MLP's
        return reader.integer("mamba_expand") * reader.integer(*names.HIDDEN)
    stated = reader.optional_integer("intermediate_size")
    reader.ignore("expand")
    if stated:
        return stated
    channels = reader.integer("expand") * reader.integer(*names.HIDDEN)
    reader.note("intermediate_size", channels, "expand x hidden size")
    return channels
