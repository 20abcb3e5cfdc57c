"""What any published model remembers: from a config.json or a GGUF header to `ModelMemory`."""

from holdover.geometry.sizing.base import (
    Assumption,
    ModelMemory,
    Parameters,
    read_memory,
)
from holdover.geometry.sizing.gguf import read_gguf_memory

__all__ = ["Assumption", "ModelMemory", "Parameters", "read_gguf_memory", "read_memory"]
