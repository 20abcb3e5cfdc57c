"""Model files: safetensors folders and GGUF files behind one `Checkpoint`. Imports no torch."""

from holdover.weights._open import (
    BUILT_IN,
    locate_header,
    locate_model,
    open_checkpoint,
    open_header,
)
from holdover.weights.base import Checkpoint, TensorInfo, require_tensors

__all__ = [
    "BUILT_IN",
    "Checkpoint",
    "TensorInfo",
    "locate_header",
    "locate_model",
    "open_checkpoint",
    "open_header",
    "require_tensors",
]
