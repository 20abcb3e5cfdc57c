"""Models that attend several times in a layer: each time with keys and values of its own.

Most run some of their layers more than once per token.
Passes after the first are counted as further layers, numbered after the model's own.
"""

from __future__ import annotations

from holdover.geometry.sizing.layer_lists import credible
from holdover.geometry.sizing.reader import Reader


def passes(reader: Reader, n_layers: int) -> tuple[int, ...]:
    """The model layer that each set of stored rows is of; each layer once where nothing loops."""
    first = tuple(range(n_layers))
    match reader.model_type:
        case "hrm_text":
            cycles = _cycles(reader)
            credible(reader, "H_cycles", n_layers * cycles)
            return first * cycles
        case "longcat_flash":  # two attentions in each layer
            return tuple(i for i in first for _ in range(2))
        case "dory":
            return first + _dory(reader, n_layers)
        case "inkling2_loop_text":
            return first + _between(reader, n_layers)
    return first


def _cycles(reader: Reader) -> int:
    """Both stacks of HRM: the low one runs `L_cycles` times for each of the high one."""
    cycles = reader.integer("H_cycles") * (reader.integer("L_cycles") + 1)
    if reader.states("num_layers_per_stack"):
        reader.ignore("num_layers_per_stack")
        return 1  # num_hidden_layers is then the number of passes already
    return cycles


def _dory(reader: Reader, n_layers: int) -> tuple[int, ...]:
    start = reader.integer("n_input_layers", minimum=0)
    stop = n_layers - reader.integer("n_output_layers", minimum=0)
    count = reader.optional_integer("n_recurrent_layers", minimum=0)
    if stop < start or (count is not None and count != stop - start):
        raise reader.wrong("n_recurrent_layers", f"is not what is left of {n_layers} layers")
    loops = reader.integer("n_recurrent_loops")
    mode = reader.get("recurrent_kv_cache_mode")
    if mode not in ("per_loop", "last_loop"):
        raise reader.wrong("recurrent_kv_cache_mode", f"{mode!r} is not per_loop or last_loop")
    credible(reader, "n_recurrent_loops", loops * (stop - start))
    return tuple(range(start, stop)) * (loops - 1 if mode == "per_loop" else 0)


def _between(reader: Reader, n_layers: int) -> tuple[int, ...]:
    part = reader.part("loop_config")
    if part is None:
        start = reader.integer("loop_layer_index_start", minimum=0)
        stop = reader.integer("loop_layer_index_end", minimum=0)
        n_passes = reader.integer("loop_num_passes")
    else:
        start, stop = (part.integer(name, minimum=0) for name in ("core_start", "core_end"))
        n_passes = part.integer("num_passes")
        reader.ignore("loop_layer_index_start", "loop_layer_index_end", "loop_num_passes")
    if not start <= stop <= n_layers:
        raise reader.wrong("loop_layer_index_end", f"{start} to {stop} of {n_layers} layers")
    credible(reader, "loop_num_passes", n_passes * (stop - start))
    return tuple(range(start, stop)) * (n_passes - 1)
