"""From a plan to a running engine: each part once, with the sizes that the plan states.

What is allocated is compared with what was planned, and any difference stops the start.
"""

from __future__ import annotations

import ctypes
import hashlib

import torch

import holdover
from holdover.cache.arena import HostArena
from holdover.cache.manager import CacheManager
from holdover.engine.engine import Engine
from holdover.engine.planning import Planned
from holdover.models.base import load_model
from holdover.text.tokenizer import load_tokenizer


def build_engine(planned: Planned) -> Engine:
    """Load and allocate everything, the checkpoint's tokenizer included.

    Sets torch's compute threads for the whole process. Raises HoldoverError for a damaged model.
    """
    torch.set_num_threads(planned.threads)
    checkpoint, plan, config = planned.checkpoint, planned.plan, planned.config
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer.chat_template is not None:
        tokenizer.chat_template.check()
    arena = HostArena(plan.arena_bytes)  # first: what cannot be had is better known before the load
    _as_planned("arena", arena.nbytes, plan.arena_bytes)
    model = load_model(checkpoint, planned.geometry, planned.dtype)
    _as_planned("weights", model.weights_nbytes, plan.parts.weights_bytes)
    workspace = torch.zeros(plan.parts.workspace_bytes, dtype=torch.uint8)
    kernels = planned.kernels.bind(arena.bytes, plan.layout, plan.limits, workspace)
    seed = checkpoint.digest()
    _return_freed_memory()
    return Engine(
        model=model,
        kernels=kernels,
        manager=CacheManager(plan.layout, arena, eviction=config.eviction, seed=seed),
        tokenizer=tokenizer,
        limits=plan.limits,
        planned_bytes=plan.arena_bytes,
        allocated_bytes=arena.nbytes,
        max_waiting_requests=config.max_waiting_requests,
        fingerprint=_fingerprint(planned, seed),
    )


def _fingerprint(planned: Planned, weights_digest: bytes) -> str:
    names = f"{planned.dtype} {planned.plan.subject.backend} {holdover.__version__}"
    parts = (weights_digest, planned.layout.fingerprint, names.encode())
    return "fp_" + hashlib.blake2b(b"".join(parts), digest_size=6).hexdigest()


def _return_freed_memory() -> None:
    """Give back what loading freed: glibc keeps it, 90 MiB with SmolLM2, and no plan counts it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc only
        trim(0)


def _as_planned(part: str, allocated_bytes: int, planned_bytes: int) -> None:
    assert allocated_bytes == planned_bytes, (
        f"{part}: {allocated_bytes} bytes allocated, {planned_bytes} planned"
    )
