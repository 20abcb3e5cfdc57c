"""Starting an engine in this process: quickly, and with a bar that says how far it is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdover.cli.screen import Advance, progress_bar
from holdover.errors import ModelFileError

if TYPE_CHECKING:
    import torch

    from holdover.engine.engine import Engine
    from holdover.engine.planning import Planned
    from holdover.weights import Checkpoint, TensorInfo


@contextmanager
def starting() -> Iterator[None]:
    """Around all that a process loads before its first request.

    The collector would walk the growing heap again and again (0.7 s of a start). What is loaded
    stays, so it is also kept out of later collections, each of which would cost a step 100 ms.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@dataclass(slots=True)
class WatchedCheckpoint:
    """A checkpoint that reports the stored bytes of every tensor once it is loaded."""

    checkpoint: Checkpoint
    advance: Advance
    hashed: Future[bytes]
    done_bytes: int = 0
    total_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.total_bytes = sum(info.n_bytes for info in self.tensors.values())

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.checkpoint.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.checkpoint.tensors

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = self.checkpoint.load(name, dtype)
        with self._lock:  # tensors are loaded on several threads
            self.done_bytes += self.tensors[name].n_bytes
            self.advance(self.done_bytes, self.total_bytes)
        return tensor

    def digest(self) -> bytes:
        return self.hashed.result()


def open_model(model: str) -> Checkpoint:
    """Its headers; a file in parts is put together first, once, with a bar that says so."""
    from holdover.geometry.sizing.catalogue import in_catalogue
    from holdover.weights import BUILT_IN, open_checkpoint

    try:
        with progress_bar(f"putting {model} together, once") as advance:
            return open_checkpoint(model, advance)
    except ModelFileError as error:
        is_name = "/" not in model and not Path(model).exists() and model not in BUILT_IN
        if not (is_name and in_catalogue(model)):
            raise
        reason = "`holdover plan` sizes it by this name, but no weights of it are here; give"
        raise ModelFileError(model, f"{reason} a GGUF file, a folder, or owner/name") from error


def load_engine(planned: Planned) -> Engine:
    """A running engine as planned."""
    with ThreadPoolExecutor(1) as background:
        # Hashing needs no interpreter lock; the import of torch after it needs little else.
        hashed = background.submit(planned.checkpoint.digest)
        from holdover.engine.build import build_engine

        with progress_bar("loading weights") as advance:
            watched = WatchedCheckpoint(planned.checkpoint, advance, hashed)
            return build_engine(replace(planned, checkpoint=watched))
