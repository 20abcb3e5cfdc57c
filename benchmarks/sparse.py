"""Sparse attention: its time against reading all, and what it changes in answers.

    python benchmarks/sparse.py time [--context 16384] [--share 0.12] [--codecs bf16,int8,int4]
    python benchmarks/sparse.py agreement [--model smollm2] [--context 8192] [--codecs bf16]

`time`: one decoding sequence with the geometry of SmolLM2-135M and random rows, its blocks
scattered over the arena; one step attends in all 30 layers, the first dense ones included. Of each
codec a step that reads all and one that reads `--share` of the blocks, first, latest and dense
layers included or not as `--dense-layers` says, take turns in the same rounds. What choosing takes
is the time of a step that chooses as well and attends to next to nothing.

`agreement`: the last `--scored` tokens of a text of `--context` tokens, and the questions of the
recall probe, are computed as generated tokens, once reading all and once `--share` of the blocks,
with the same codec; how often the most likely token is the same. Both go on from one context in
one cache.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from attention import BLOCK_TOKENS, LAYERS, Cache
from rounds import Line, measure
from torch import Tensor

from holdover.cache.arena import HostArena
from holdover.config import Config
from holdover.engine.build import find_centres
from holdover.engine.planning import Planned, plan_serving
from holdover.kernels.base import AttentionBatch, KernelBackend
from holdover.models._native import load_native
from holdover.models.base import Model
from holdover.quality.recall import Probe, make_probe
from holdover.quality.text import text_of
from holdover.spec.sparse import Sparse
from holdover.text.tokenizer import load_tokenizer
from holdover.units import ceil_div

LEAST_BLOCKS = 4
QUESTION_TOKENS = 16


def sparse_of(asked: argparse.Namespace, dense_layers: int) -> Sparse:
    """That reads `share` of the context's blocks, the first and the latest among them."""
    always = replace(Sparse(0), dense_layers=dense_layers)
    n_blocks = int(asked.share * ceil_div(asked.context, asked.block_tokens))
    return replace(always, blocks=max(LEAST_BLOCKS, n_blocks - always.read_blocks))


def compare_times(asked: argparse.Namespace) -> None:
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    threads = 1 if asked.cpu_time else asked.threads
    torch.set_num_threads(threads)
    context, dense_layers = asked.context, asked.dense_layers
    few = sparse_of(asked, dense_layers)
    print(
        f"decode at {context} tokens, {threads} threads, {few.read_blocks} of "
        f"{ceil_div(context, asked.block_tokens)} blocks of {asked.block_tokens} tokens in "
        f"{LAYERS - dense_layers} of {LAYERS} layers"
    )
    for codec in asked.codecs.split(","):
        caches = [
            Cache.of(
                "native", codec, context, threads, sparse=sparse, block_tokens=asked.block_tokens
            )
            for sparse in (few, replace(few, blocks=1, sink_blocks=0, latest_blocks=1))
        ]
        for cache in caches:
            cache.fill(context)
        whole = sum(block.reading.whole_nbytes(context) for block in caches[0].layout.blocks)
        reads = [cache.layout.read_bytes(context) for cache in caches]
        lines = [
            Line(f"{codec}, all", whole, lambda c=caches[0]: c.decode(context), clock),
            Line(f"{codec}, few", reads[0], lambda c=caches[0]: c.decode(context, 0), clock),
            Line(f"{codec}, choosing", reads[1], lambda c=caches[1]: c.decode(context, 0), clock),
        ]
        measure(lines, asked.rounds, None)
        every, chosen, choosing = (statistics.median(line.seconds) for line in lines)
        print(
            f"{codec}: {chosen / every:.3f} of the time and {reads[0] / whole:.3f} of the bytes; "
            f"choosing is {choosing / chosen:.0%} of it\n"
        )


@dataclass(frozen=True, slots=True)
class Forced:
    """A model that computes given tokens through a cache of one sequence."""

    planned: Planned
    model: Model
    kernels: KernelBackend
    tables: tuple[np.ndarray, ...]  # of each group, in sectors of its own
    held: tuple[Any, ...]

    @classmethod
    def of(cls, planned: Planned) -> Forced:
        plan, blueprint = planned.plan, planned.blueprint
        assert blueprint is not None, "the native decoder was not built"
        model = load_native(planned.checkpoint, blueprint, planned.dtype, plan.limits)
        arena = HostArena(plan.arena_bytes)
        workspace = torch.zeros(plan.parts.workspace_bytes, dtype=torch.uint8)
        centres = find_centres(planned, model, load_tokenizer(planned.checkpoint))
        kernels = planned.kernels.bind(arena.bytes, plan.layout, plan.limits, workspace, centres)
        n_blocks = ceil_div(plan.limits.max_context_tokens, plan.layout.spec.block_tokens)
        tables, n_sectors = [], 0
        for per_sector in plan.layout.blocks_per_sector:
            tables.append(n_sectors * per_sector + np.arange(n_blocks, dtype=np.int32)[None])
            n_sectors += ceil_div(n_blocks, per_sector)
        assert n_sectors <= plan.n_sectors, "give more --kv-memory"
        return cls(planned, model, kernels, tuple(tables), (arena, workspace, centres))

    def feed(self, tokens: Sequence[int], start: int, n_prompt: int, scored: bool) -> Tensor:
        """Compute tokens from `start` on; logits after each where they are scored."""
        limits, block_tokens = self.planned.limits, self.planned.layout.spec.block_tokens
        found = [torch.empty(0, self.planned.geometry.vocab_size)]
        step_tokens = limits.max_sequences if scored else limits.step_tokens
        for at in range(start, len(tokens), step_tokens):
            stop = min(at + step_tokens, len(tokens))
            n_blocks = ceil_div(stop, block_tokens)
            tables = tuple(table[:, :n_blocks].copy() for table in self.tables)
            counts = (np.array(n, dtype=np.int32) for n in ([0, stop - at], [stop], [n_prompt]))
            starts, contexts, prompts = counts
            step = self.kernels.begin(AttentionBatch(starts, contexts, tables, prompts))
            rows = torch.arange(stop - at if scored else 0)
            ids = torch.tensor(tokens[at:stop])
            logits = self.model.forward(ids, torch.arange(at, stop), step, rows)
            found.append(logits.clone())
        return torch.cat(found)


def compare_answers(asked: argparse.Namespace) -> None:
    torch.set_num_threads(asked.threads)
    context = asked.context
    few = sparse_of(asked, Sparse(0).dense_layers)
    n_blocks = ceil_div(context, asked.block_tokens)
    print(
        f"{asked.model} at {context} tokens: {few.read_blocks} of {n_blocks} blocks of "
        f"{asked.block_tokens} tokens, but for the first {few.dense_layers} layers"
    )
    for codec in asked.codecs.split(","):
        config = Config(
            model=asked.model, kv=codec, block_tokens=asked.block_tokens, max_sequences=64,
            sparse_blocks=few.blocks, max_context=context, threads=asked.threads,
            kv_memory=asked.kv_memory,
        )  # fmt: skip
        forced = Forced.of(plan_serving(config))
        tokenizer = load_tokenizer(forced.planned.checkpoint)
        [text] = text_of(None, context).chunks(tokenizer, 1, context)
        first = context - asked.scored
        forced.feed(text[:first], 0, first, scored=False)
        every, chosen = (forced.feed(text, first, n, scored=True) for n in (context, first))
        same = (every.argmax(-1) == chosen.argmax(-1)).float().mean()
        p, q = every.log_softmax(-1), chosen.log_softmax(-1)
        divergence = (p.exp() * (p - q)).sum(-1).mean()
        print(f"{codec}, text: same top token {same:.1%} of {len(p)}, mean KL {divergence:.4f}")
        compare_recall(forced, make_probe(tokenizer, text, context - QUESTION_TOKENS), codec)


def compare_recall(forced: Forced, probe: Probe, codec: str) -> None:
    n = len(probe.context)
    forced.feed(probe.context, 0, n, scored=False)
    answers = torch.tensor(probe.answers)
    last: list[Tensor] = []
    for n_prompt in (n + QUESTION_TOKENS, n):
        asked = [forced.feed(probe.context + q, n, n_prompt, scored=True) for q in probe.questions]
        last.append(torch.stack([logits[-1] for logits in asked]))
    same = (last[0].argmax(-1) == last[1].argmax(-1)).float().mean()
    answered = [x[:, answers].argmax(-1) for x in last]
    agreed = (answered[0] == answered[1]).float().mean()
    right = [(x == torch.arange(len(answers))).float().mean() for x in answered]
    print(
        f"{codec}, recall: same answer {agreed:.1%} of {len(answers)}, same top token {same:.1%}; "
        f"facts recalled {right[1]:.0%}, reading all {right[0]:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("time", "agreement"))
    parser.add_argument("--context", type=int)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--codecs", default="bf16,int8,int4")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dense-layers", type=int, default=0, help="of the 30 that are timed")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, on a busy machine")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--block-tokens", type=int, default=BLOCK_TOKENS)
    parser.add_argument("--scored", type=int, default=1024)
    parser.add_argument("--kv-memory", default="768MiB")
    asked = parser.parse_args()
    asked.context = asked.context or (16384 if asked.what == "time" else 8192)
    if asked.what == "time":
        compare_times(asked)
    else:
        compare_answers(asked)


if __name__ == "__main__":
    main()
