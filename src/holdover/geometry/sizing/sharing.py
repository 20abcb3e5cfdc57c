"""Which layers store keys and values of their own: the others read an earlier layer's."""

from __future__ import annotations

from holdover.geometry.sizing.layer_lists import listed
from holdover.geometry.sizing.reader import Reader


def storing_layers(reader: Reader, n_layers: int) -> frozenset[int]:
    """All layers but those that share (Gemma 3n and 4, cross-layer attention)."""
    n_shared = reader.optional_integer("num_kv_shared_layers", minimum=0) or 0
    if n_shared >= n_layers and n_shared:
        raise reader.wrong("num_kv_shared_layers", f"{n_shared} of {n_layers} layers leaves none")
    own = frozenset(range(n_layers - n_shared))
    if reader.flag("use_cla"):
        factor = reader.integer("cla_share_factor")
        own = frozenset(i for i in own if i % factor == 0)
    sources = listed(reader, "kv_source_layers", n_layers)
    if sources is not None:
        if any(reader.as_integer(s, "kv_source_layers", 0) > i for i, s in enumerate(sources)):
            raise reader.wrong("kv_source_layers", "a layer cannot read a later layer's keys")
        own = frozenset(i for i in own if sources[i] == i)
    return own
