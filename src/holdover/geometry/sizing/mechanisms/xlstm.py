"""xLSTM: per head a key x value matrix, a normaliser and a running maximum."""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.mechanisms.base import Layer, exact, state, stated_dtype
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec
from holdover.units import ceil_div

KINDS = frozenset({"linear"})
RANK = 0

_MULTIPLE = 64  # widths of the class are rounded up to it


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type == "xlstm"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    heads = reader.integer(*names.QUERY_HEADS)
    key, value = (
        exact(reader, names.QUERY_HEADS[0], _width(reader, name), heads)
        for name in ("qk_dim_factor", "v_dim_factor")
    )
    dtype = stated_dtype(reader, "inference_state_dtype")
    return (state("xlstm", layer, heads, key * value + key + 1, dtype),)


def _width(reader: Reader, name: str) -> int:
    factor = reader.get(name)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 16:
        raise reader.wrong(name, f"{factor!r} is no share of the hidden size")
    return ceil_div(int(reader.integer(*names.HIDDEN) * factor), _MULTIPLE) * _MULTIPLE
