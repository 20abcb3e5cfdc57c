"""Gated delta layers of which some add an embedding of the last tokens (Qwen4-Exp).

What they add passes a dilated convolution, whose last inputs are kept. Layer ids count from 1.
"""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.layer_lists import layer_numbers
from holdover.geometry.sizing.mechanisms import gated_delta
from holdover.geometry.sizing.mechanisms.base import Layer, state
from holdover.geometry.sizing.reader import Reader
from holdover.spec.memory import MemorySpec

KINDS = frozenset({"linear"})
RANK = 10


def claims(reader: Reader, layer: Layer) -> bool:
    return reader.model_type == "qwen4_exp_text"


def stores(reader: Reader, layer: Layer) -> tuple[MemorySpec, ...]:
    own = gated_delta.stores(reader, layer)
    numbers = reader.get("ple_layer_ids") or []
    if layer.index not in layer_numbers(reader, "ple_layer_ids", numbers, layer.n_layers, first=1):
        return own
    channels = reader.integer("hc_count") * reader.integer(*names.HIDDEN)
    columns = (reader.integer("ple_conv_kernel_size") - 1) * reader.integer("ngram_size")
    return (*own, state("n-gram embedding filter", layer, channels, columns))
