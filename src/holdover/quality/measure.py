"""Compares ways of storing keys and values with an exact one, in lockstep over the same text.

The reference stores them in the type that the model computes in, so it adds no error of its own. A
step is computed through every cache and compared before the next, so that no logits are kept.
A window is measured in the same way: the reference has none, and all others have it, the first of
them in the reference's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from holdover.codecs.base import kv_choice
from holdover.config import Config, at_least_one, flag
from holdover.engine.planning import (
    Planned,
    cache_layout,
    imposed_window,
    plan_serving,
    served_geometry,
)
from holdover.errors import ConfigError
from holdover.geometry.base import read_geometry
from holdover.geometry.imposed import ImposedWindow
from holdover.models.base import Model, load_model
from holdover.quality.divergence import Divergence, Figures
from holdover.quality.forced import ForcedCache
from holdover.quality.recall import FACTS, Probe, Recalled, make_probe, recalled
from holdover.quality.text import LEAST_CONTEXT_TOKENS, Text, text_of
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.sparse import Sparse
from holdover.text.tokenizer import load_tokenizer
from holdover.units import ceil_div
from holdover.weights import Checkpoint

LOGITS_BYTES = 64 << 20  # most that one step's scored rows take, of each cache
LOGIT_BYTES = 4
MOST_STEP_TOKENS = 256
SPARE_TOKENS = 32  # of each question beside the context that they share
BASELINE = "bf16"  # what capacity is compared with

Advance = Callable[[int, int], None]
"""Called with (done, total) tokens."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """What is measured; the defaults are those of llama.cpp's figures in docs/quality.md."""

    text: str | None = None
    context: int = 2048
    chunks: int = 5
    recall: int = 4096

    def __post_init__(self) -> None:
        at_least_one("chunks", self.chunks)
        if self.context < LEAST_CONTEXT_TOKENS:
            raise ConfigError(
                "--context", f"{self.context} is too small; the least is {LEAST_CONTEXT_TOKENS}"
            )
        if self.recall < 0:
            raise ConfigError("--recall", f"{self.recall} is less than 0, which leaves it out")


@dataclass(frozen=True, slots=True)
class Stored:
    """One way of storing keys and values: what it takes and what it costs.

    `capacity` is how many times the tokens of bf16 the same memory holds. `figures` is None for
    the reference itself; `recall` is None where nothing was asked, and so is `recall_same_top`, how
    often the most likely token after a question is the reference's. `sparse_blocks` is None where
    generated tokens read all.
    """

    kv: str
    bytes_per_token: int
    capacity: float
    figures: Figures | None
    recall: float | None
    recall_same_top: float | None
    sparse_blocks: int | None


@dataclass(frozen=True, slots=True)
class Quality:
    """`choices[0]` is the reference, whose perplexity is `perplexity`."""

    model: str
    architecture: str
    dtype: str
    backend: str
    text: str
    procedure: Procedure
    scored_tokens: int
    perplexity: float
    choices: tuple[Stored, ...]
    window: ImposedWindow | None = None  # of all but the reference


def split_choices(given: Sequence[str]) -> tuple[str, ...]:
    """`--kv`, each time a list of codecs or one choice with rules; as given, each once."""
    choices: list[str] = []
    for text in given:
        choices += [text] if "=" in text else [part.strip() for part in text.split(",")]
    for choice in choices:
        kv_choice(choice)  # a wrong name is an error before anything is opened
    return tuple(dict.fromkeys(choices))


def measure(
    config: Config,
    checkpoint: Checkpoint,
    choices: Sequence[str],
    procedure: Procedure,
    advance: Advance = lambda done, total: None,
) -> Quality:
    """Load the model once and run the procedure through every cache.

    Raises HoldoverError for a choice the model cannot have, a text that is too short, and a
    context longer than the model's.
    """
    run = _Run.prepare(config, checkpoint, choices, procedure)
    divergences = run.compare(advance)
    recalls = run.recall(advance)
    figures = [None, *(divergence.figures() for divergence in divergences)]
    stored = (
        Stored(
            planned.plan.subject.kv,
            *_size(planned, config),
            found,
            None if recall is None else recall.right,
            None if recall is None or recalls[0] is None else recall.same_top(recalls[0]),
            planned.config.sparse_blocks,
        )
        for planned, found, recall in zip(run.planned, figures, recalls, strict=True)
    )
    first = divergences[0].figures()
    subject = run.planned[0].plan.subject
    return Quality(
        model=run.planned[0].model_name,
        architecture=subject.architecture,
        dtype=subject.dtype,
        backend=subject.backend,
        text=run.text.name,
        procedure=procedure,
        scored_tokens=first.scored_tokens,
        perplexity=first.perplexity / first.perplexity_ratio,
        choices=tuple(stored),
        window=imposed_window(config),
    )


def _size(planned: Planned, config: Config) -> tuple[int, float]:
    """Bytes per token, and capacity against BASELINE, alignment included."""
    layout = planned.layout
    spec = CacheSpec.of(layout.spec.layers, layout.spec.block_tokens)
    baseline = CacheLayout.of(spec, kv_choice(BASELINE))
    ours, theirs = (sum(b.nbytes for b in found.blocks) for found in (layout, baseline))
    return sum(block.logical_bytes(1) for block in layout.blocks), theirs / ours


@dataclass(slots=True)
class _Run:
    """Everything loaded, and how far it has come."""

    planned: list[Planned]
    caches: list[ForcedCache]  # the reference's first
    text: Text
    chunks: list[list[int]]
    probe: Probe | None
    total_tokens: int
    done_tokens: int = 0

    @classmethod
    def prepare(
        cls,
        config: Config,
        checkpoint: Checkpoint,
        choices: Sequence[str],
        procedure: Procedure,
    ) -> _Run:
        geometry = read_geometry(checkpoint.config)
        for name in ("context", "recall"):
            if getattr(procedure, name) > geometry.max_context_tokens:
                raise ConfigError(
                    flag(name),
                    f"{getattr(procedure, name)} is more than the model's context of "
                    f"{geometry.max_context_tokens} tokens",
                )
        tokenizer = load_tokenizer(checkpoint)
        text = text_of(procedure.text, procedure.chunks * procedure.context)
        chunks = text.chunks(tokenizer, procedure.chunks, procedure.context)
        longest, probe = procedure.context, None
        if procedure.recall:
            filler = [token for chunk in chunks for token in chunk]
            probe = make_probe(tokenizer, filler, procedure.recall)
            longest = max(longest, probe.n_tokens)
        config = replace(
            config,
            dtype=_reference_type(config),
            max_context=longest,
            max_sequences=FACTS if procedure.recall else 1,
            step_tokens=_step_tokens(geometry.vocab_size),
        )
        exact = replace(config, kv=config.dtype, window=None, sinks=None, sparse_blocks=None)
        if config.window is not None:
            _demand_forgetting(config, procedure)
        if config.sparse_blocks is not None:
            _demand_leaving_out(Sparse(config.sparse_blocks), longest, config.block_tokens)
        others = [c for c in (replace(config, kv=choice) for choice in choices) if c != exact]
        plain = replace(config, kv=config.dtype)
        if config.window is not None and plain not in others:
            others = [plain, *others]
        planned = [_plan(c, checkpoint) for c in (exact, *others)]
        torch.set_num_threads(planned[0].threads)
        model = load_model(checkpoint, geometry, planned[0].dtype)
        caches = [ForcedCache.of(plan, _as_planned(model, plan), tokenizer) for plan in planned]
        each = procedure.chunks * procedure.context + (len(probe.context) if probe else 0)
        return cls(planned, caches, text, chunks, probe, each * len(caches))

    def compare(self, advance: Advance) -> list[Divergence]:
        """One for each choice, over the second half of every chunk."""
        found = [Divergence() for _ in self.caches[1:]]
        for chunk in self.chunks:
            sequences = [cache.open(chunk) for cache in self.caches]
            for step in _steps(chunk, self.caches[0].step_tokens):
                reference: Tensor | None = None
                for i, (cache, sequence) in enumerate(zip(self.caches, sequences, strict=True)):
                    logits = cache.feed([(sequence, step.tokens)], step.n_scored, len(chunk) // 2)
                    if reference is None:
                        reference = logits
                    else:
                        found[i - 1].add(reference, logits, step.targets)
                    self._count(len(step.tokens), advance)
            for cache, sequence in zip(self.caches, sequences, strict=True):
                cache.close(sequence)
        return found

    def recall(self, advance: Advance) -> list[Recalled | None]:
        """What each cache recalls."""
        if self.probe is None:
            return [None] * len(self.caches)
        found: list[Recalled | None] = []
        for cache in self.caches:
            found.append(recalled(cache, self.probe))
            self._count(len(self.probe.context), advance)
        return found

    def _count(self, n_tokens: int, advance: Advance) -> None:
        self.done_tokens += n_tokens
        advance(self.done_tokens, self.total_tokens)


@dataclass(frozen=True, slots=True)
class _Step:
    """The last `n_scored` of `tokens` are scored against `targets`, the tokens that follow them."""

    tokens: list[int]
    n_scored: int
    targets: Tensor


def _steps(chunk: list[int], step_tokens: int) -> Iterator[_Step]:
    """Of a whole chunk, of which the first half is context and the last token has no successor."""
    edges = [len(chunk) // 2, len(chunk) - 1]
    start = 0
    for stop in edges:
        for at in range(start, stop, step_tokens):
            end = min(at + step_tokens, stop)
            n_scored = end - at if at >= edges[0] else 0
            targets = torch.tensor(chunk[end - n_scored + 1 : end + 1])
            yield _Step(chunk[at:end], n_scored, targets)
        start = stop


def _demand_forgetting(config: Config, procedure: Procedure) -> None:
    assert config.window is not None
    if config.window >= procedure.context:
        raise ConfigError(
            "--window",
            f"{config.window} tokens hold all of a chunk of {procedure.context}; give --window "
            f"{procedure.context - 1} or less, or a longer --context",
        )


def _demand_leaving_out(sparse: Sparse, longest_tokens: int, block_tokens: int) -> None:
    if sparse.read_tokens(longest_tokens, block_tokens) == longest_tokens:
        raise ConfigError(
            "--sparse-blocks",
            f"{sparse.read_blocks} blocks of {block_tokens} tokens, the first and the latest among "
            f"them, are all of {longest_tokens}; give fewer, or a longer --context",
        )


def _as_planned(model: Model, planned: Planned) -> Model:
    """The same weights, computed as the plan's geometry says."""
    return cast(Model, replace(cast(Any, model), geometry=planned.geometry))


def _plan(config: Config, checkpoint: Checkpoint) -> Planned:
    """A plan whose arena holds the one sequence there is, and the questions beside it."""
    layout = cache_layout(config, served_geometry(checkpoint, imposed_window(config)))
    assert config.max_context is not None
    blocks = layout.peak_blocks(config.max_context, config.step_tokens)
    n_spare = config.max_sequences * (1 + ceil_div(SPARE_TOKENS, config.block_tokens))
    arena_bytes = layout.sectors_for([n + n_spare for n in blocks]) * layout.sector_bytes
    config = replace(config, kv_memory=str(arena_bytes))
    return plan_serving(config, open_model=lambda model: checkpoint)


def _reference_type(config: Config) -> str:
    """fp32 unless another was asked for: bf16 arithmetic has errors of its own, as large as
    those of an 8 bit cache, and they would be counted against every codec."""
    return "fp32" if config.dtype == "auto" else config.dtype


def _step_tokens(vocab_size: int) -> int:
    return max(FACTS, min(MOST_STEP_TOKENS, LOGITS_BYTES // (LOGIT_BYTES * vocab_size)))
