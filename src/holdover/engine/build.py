"""From a plan to a running engine: each part once, with the sizes that the plan states.

What is allocated is compared with what was planned, and any difference stops the start.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging

import torch

import holdover
from holdover.cache.arena import HostArena
from holdover.cache.costs import Costs
from holdover.cache.ends import PromptEnds
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.cache.tiers._open import open_tiers, tenant_salt
from holdover.engine.engine import Engine
from holdover.engine.planning import Planned
from holdover.engine.sampler import sampler_bytes
from holdover.kernels._centre import Centres
from holdover.kernels._transcoding import centres_of, transcoder
from holdover.models import _centring
from holdover.models.base import Model, load_model
from holdover.text.tokenizer import Tokenizer, load_tokenizer

_log = logging.getLogger(__name__)


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
    model = _load(planned)
    workspace = torch.zeros(plan.parts.workspace_bytes, dtype=torch.uint8)
    centres = find_centres(planned, model, tokenizer)
    own = centres_of(plan.layout, centres)
    kernels = planned.kernels.bind(arena.bytes, plan.layout, plan.limits, workspace, own)
    seed = _identity(planned, own)
    tiers = open_tiers(
        planned.tiers,
        plan.layout,
        seed + plan.layout.fingerprint,
        lambda stored: transcoder(plan.layout, own, stored, centres_of(stored, centres)),
    )
    _as_planned("tiers", sum(tier.buffer_bytes for tier in tiers), plan.parts.tiers_bytes)
    for tier in tiers:
        if tier.codec is not None:
            _log.info("tier %s stores blocks requantised in %s", tier.name, tier.codec)
    ends = PromptEnds(planned.ends, plan.layout.spec.block_tokens)
    _as_planned("ends", ends.nbytes, plan.parts.ends_bytes)
    _return_freed_memory()
    return Engine(
        model=model,
        kernels=kernels,
        manager=CacheManager(
            plan.layout,
            arena,
            eviction=config.eviction,
            seed=seed,
            mover=Mover(plan.layout, tiers, Costs()),
            salt=tenant_salt(planned.tiers),
            share_prefixes=config.share_prefixes,
            whole_tokens=(
                plan.limits.max_context_tokens if config.reservation == "contiguous" else None
            ),
            ends=ends,
        ),
        tokenizer=tokenizer,
        limits=plan.limits,
        planned_bytes=plan.arena_bytes,
        allocated_bytes=arena.nbytes,
        max_waiting_requests=config.max_waiting_requests,
        fingerprint=_fingerprint(planned, seed),
        reuses_prefixes=config.reservation == "shared",
    )


def _load(planned: Planned) -> Model:
    plan, checkpoint, blueprint = planned.plan, planned.checkpoint, planned.blueprint
    if blueprint is None:
        model = load_model(checkpoint, planned.geometry, planned.dtype)
        _as_planned("weights", model.weights_nbytes, plan.parts.weights_bytes)
        return model
    from holdover.models._native import load_native

    decoder = load_native(checkpoint, blueprint, planned.dtype, plan.limits)
    _as_planned("weights", decoder.weights_nbytes, plan.parts.weights_bytes)
    rest = blueprint.input_bytes(plan.limits)
    rest += sampler_bytes(plan.limits, planned.geometry.vocab_size)
    _as_planned("buffers", decoder.buffers_nbytes + rest, plan.parts.activations_bytes)
    return decoder


def find_centres(planned: Planned, model: Model, tokenizer: Tokenizer) -> Centres:
    """What keys are stored less of, where their codec asks for it: by computing a short text."""
    centres = _centring.find_centres(
        model,
        planned.kernels,
        planned.centres,
        planned.layout.spec,
        planned.limits,
        _centring.text_tokens(tokenizer),
    )
    _as_planned("centres", _centring.nbytes(centres), planned.plan.parts.centres_bytes)
    return centres


def _identity(planned: Planned, centres: Centres) -> bytes:
    """What keys and values follow from: the weights, and how they are stored and multiplied."""
    subject = planned.plan.subject
    form = f"{subject.dtype} {subject.weights} {subject.decoder}".encode()
    sparse = planned.layout.spec.sparse
    if sparse is not None:  # what a token was computed from depends on what was read for it
        form += repr(sparse).encode()
    of_all = planned.checkpoint.digest() + form + _centring.digest(centres)
    return hashlib.blake2b(of_all, digest_size=32).digest()


def _fingerprint(planned: Planned, identity: bytes) -> str:
    names = f"{planned.plan.subject.backend} {holdover.__version__}"
    parts = (identity, planned.layout.fingerprint, names.encode())
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
