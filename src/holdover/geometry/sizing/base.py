"""From any published config to what the model remembers.

`read_memory` finds the text model in a config, asks one mechanism (a file of `mechanisms/`) per
layer kind what a layer stores, and groups equal layers. A field that is missing, of the wrong type
or of a kind nobody knows is refused by its name (`ConfigError`), never guessed: what is not in
the file comes from the class defaults of its model type or from `assume`, and is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdover.spec.memory import MemorySpec


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that the file did not state. `source` says where it is from."""

    field: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights of the model: all of them, and those that one token's step reads."""

    count: int
    active: int
    source: Literal["file", "catalogue", "formula"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """All that a model keeps of one sequence. `parameters` is None where no formula applies."""

    architecture: str
    model_type: str
    n_layers: int
    memories: tuple[MemorySpec, ...]
    max_context_tokens: int | None
    parameters: Parameters | None
    stored_dtype: str | None  # the config's own name, for example "bfloat16"
    assumptions: tuple[Assumption, ...]


def read_memory(
    config: Mapping[str, Any],
    *,
    assume: Mapping[str, str] | None = None,
    mtp: bool = False,
) -> ModelMemory:
    """What a model of this config.json remembers of one sequence.

    `assume` gives values for fields that the file does not state. `mtp` counts the layers that
    predict further tokens, which hold KV while an engine speculates with them.
    Raises ConfigError naming the field that is missing, wrong or not understood.
    """
    from holdover.geometry.sizing._read import read

    return read(config, dict(assume or {}), mtp)
