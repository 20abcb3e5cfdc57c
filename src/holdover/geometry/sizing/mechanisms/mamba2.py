"""Mamba 2 (Nemotron-H, Falcon-H1, Bamba, Granite 4): a matrix per head, and the convolution."""

from __future__ import annotations

from typing import Any

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, exact, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 0

_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
_HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
STATE = ("mamba_d_state", "ssm_state_size", "state_size")
GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
_KERNEL = ("mamba_d_conv", "conv_kernel")
_EXPAND = ("mamba_expand", "expand")


def claims(reader: Reader, layer: Layer) -> bool:
    if reader.model_type == "zamba":  # its n_mamba_heads are of Mamba 1
        return False
    return reader.model_type == "mamba2" or any(reader.knows(name) for name in _HEADS)


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    heads, head_dim = heads_of(reader)
    size = reader.integer(*STATE)
    channels = heads * head_dim + 2 * reader.integer(*GROUPS) * size
    kernel = reader.integer(*_KERNEL, minimum=2)
    dtype = stated_dtype(reader, "mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    return (
        state("mamba2", layer, heads, head_dim * size, dtype),
        state("mamba2 convolution", layer, channels, kernel - 1),
    )


def heads_of(reader: Reader) -> tuple[int, int]:
    heads_names = (*_HEADS, "num_heads") if reader.model_type == "mamba2" else _HEADS
    dim_names = (*_HEAD_DIM, "head_dim") if reader.model_type == "mamba2" else _HEAD_DIM
    if reader.model_type == "zamba2":
        inner = reader.integer(*_EXPAND) * reader.integer(*names.HIDDEN)
        heads = reader.integer(*heads_names)
        reader.get(*dim_names)
        return heads, exact(reader, heads_names[0], inner, heads)
    heads = reader.integer(*heads_names)
    reader.ignore(*_EXPAND, "mamba_d_ssm")
    stated: Any = reader.get(*dim_names)
    if stated is not None and stated != "auto":
        return heads, reader.as_integer(stated, dim_names[0])
    stated_inner = reader.optional_integer("mamba_d_ssm")
    inner = stated_inner or reader.integer(*_EXPAND) * reader.integer(*names.HIDDEN)
    return heads, exact(reader, heads_names[0], inner, heads)
