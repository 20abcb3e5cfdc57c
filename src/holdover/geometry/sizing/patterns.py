"""Which kind each layer is: what the file states, most explicit first, then the class's rule.

Layers are numbered from 0; kinds are those of `names.KINDS`.
"""

from __future__ import annotations

from holdover.geometry.sizing import names
from holdover.geometry.sizing.class_rules import class_rule
from holdover.geometry.sizing.layer_lists import Kinds, slides
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.stated_patterns import STALE_FIELDS, STATED, every_nth


def read_kinds(reader: Reader, n_layers: int) -> Kinds:
    """The kind of each of `n_layers`, MTP layers not among them."""
    chosen: Kinds | None = None
    for read in STATED:
        # A period is the rule for files that list no layers: classes write a stale one beside.
        superseded = read is every_nth or not reader.states(*STATED[read])
        if chosen is not None and superseded:
            reader.ignore(*STATED[read])
            continue
        kinds = read(reader, n_layers)
        if kinds is None:
            continue
        if len(kinds) != n_layers:
            raise reader.wrong("num_hidden_layers", f"{n_layers}, but {len(kinds)} are listed")
        if chosen is not None and kinds != chosen and reader.model_type not in STALE_FIELDS:
            raise reader.wrong(STATED[read][0], "says other kinds of layers than layer_types")
        chosen = chosen or kinds
    chosen = chosen or class_rule(reader, n_layers)
    if chosen is not None:
        _ignore_other_kinds(reader, chosen)
    return chosen or (_same_everywhere(reader),) * n_layers


def _same_everywhere(reader: Reader) -> str:
    """All layers are alike; only a class that is known to slide everywhere does."""
    if not slides(reader):
        return "full"
    stated = next((name for name in names.WINDOW if reader.states(name)), names.WINDOW[0])
    if not any(name in reader.defaults for name in names.WINDOW):
        raise reader.wrong(
            stated,
            f"is there, and which layers of {reader.model_type or 'this model'} slide is "
            "not known. Give them with --assume layer_types='[\"full_attention\", ...]', or say "
            f"--assume {stated}=null",
        )
    return "sliding"


def _ignore_other_kinds(reader: Reader, kinds: Kinds) -> None:
    """A window without a layer that slides decides nothing, and so on."""
    if not any("sliding" in kind or "compressed" in kind for kind in kinds):
        reader.ignore(*names.WINDOW, "sliding_window_pattern", "local_attention")
    reader.ignore("prefix_dense_sliding_window_pattern")
    if reader.states("layers_block_type", "layer_types"):
        reader.ignore("attn_layer_period", "attn_layer_offset")
    if "conv" not in kinds:
        reader.ignore("conv_L_cache")
    if "indexed" not in kinds and not reader.knows("kv_lora_rank"):
        reader.ignore("index_head_dim", "index_block_size", "index_local_blocks")
