"""Layers that predict further tokens: they hold KV only while an engine speculates with them."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.geometry.sizing import names
from holdover.geometry.sizing.layer_lists import credible, kind_of
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.reader import Reader

_TYPES = ("mtp_layer_types", "mtp_layers_block_type")


def mtp_layers(reader: Reader, n_layers: int, wanted: bool) -> Iterator[Layer]:
    """The MTP layers where `wanted`, none where the config has none."""
    count = 0
    for name in names.MTP_COUNTS:
        if name in reader.values or wanted:
            count = count or reader.optional_integer(name, minimum=0) or 0
    per_module = 1
    if reader.states("mtp_transformer_layers"):
        per_module = reader.integer("mtp_transformer_layers")
    types = reader.get(*_TYPES) if wanted or any(n in reader.values for n in _TYPES) else None
    pattern = reader.get("mtp_hybrid_override_pattern")
    if not wanted:
        return
    stated = next((name for name in names.MTP_COUNTS if reader.states(name)), "mtp_layers")
    credible(reader, stated, count * per_module)
    if isinstance(pattern, str):
        types = list(pattern)
    if types:
        cycle = [kind_of(reader, _TYPES[0], one) for one in types]
        for k in range(max(count, len(cycle)) if len(cycle) != count else count):
            yield Layer(n_layers + k, n_layers, cycle[k % len(cycle)])
        return
    for k in range(count * per_module):
        yield Layer(n_layers + k, n_layers, _kind(reader))


def _kind(reader: Reader) -> str:
    if reader.states("compress_ratios"):
        return "compressed"
    indexed = reader.knows("index_head_dim") and reader.knows("kv_lora_rank")
    return "indexed" if indexed else "full"
