"""What any published model remembers: from a config.json or a GGUF header to `ModelMemory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdover.geometry.sizing.base import (
    Assumption,
    ModelMemory,
    Parameters,
    read_memory,
)

if TYPE_CHECKING:
    from holdover.geometry.sizing.gguf import read_gguf_memory

__all__ = ["Assumption", "ModelMemory", "Parameters", "read_gguf_memory", "read_memory"]


def __getattr__(name: str) -> Any:
    """GGUF's reader when it is asked for: a model of the catalogue needs no reader at all."""
    if name == "read_gguf_memory":
        from holdover.geometry.sizing.gguf import read_gguf_memory

        return read_gguf_memory
    raise AttributeError(name)
