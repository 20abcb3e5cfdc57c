"""Model files: safetensors folders and GGUF files behind one `Checkpoint`. Imports no torch."""

from holdover.weights._open import cache_folder, locate_model, open_checkpoint
from holdover.weights.base import Checkpoint, TensorInfo, load_tensors, require_tensors

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "cache_folder",
    "load_tensors",
    "locate_model",
    "open_checkpoint",
    "require_tensors",
]
