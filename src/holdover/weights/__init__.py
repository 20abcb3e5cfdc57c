"""Model files: safetensors folders and GGUF files behind one `Checkpoint`. Imports no torch."""

from holdover.weights._open import locate_model, open_checkpoint
from holdover.weights.base import Checkpoint, TensorInfo, require_tensors

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "locate_model",
    "open_checkpoint",
    "require_tensors",
]
