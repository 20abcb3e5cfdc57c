"""Attention alone: codecs by contexts, and the native kernels against the reference.

    python benchmarks/attention.py [--contexts 16,6000] [--codecs bf16,int8] [--prefill 2000]

One decoding sequence with the geometry of SmolLM2-135M (30 layers, 3 KV heads of 64 dims for 9
query heads), its blocks scattered over the arena; a step attends in every layer. Each round times
each line once, so that what disturbs the machine disturbs all alike; printed are the median, the
fastest and the slowest round, the KV bytes that a step reads per second, and their share of the
bandwidth at which the same threads read plain memory in the same rounds. Of each backend the
medians are compared too: bf16's time over the other codecs'. A prefill's rate counts products of
what queries see, two operations each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from rounds import Line, measure, plain_memory

from holdover.cache.arena import HostArena
from holdover.codecs.base import centred_layers, uniform
from holdover.kernels._centre import Centre, Centres, turn_table
from holdover.kernels.base import AttentionBatch, KernelBackend, KernelModule
from holdover.registry import load_plugin
from holdover.spec.centres import CentreLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Full
from holdover.spec.sparse import Sparse
from holdover.units import ceil_div

LAYERS, KV_HEADS, QUERY_HEADS, HEAD_DIM, BLOCK_TOKENS, STEP_TOKENS = 30, 3, 9, 64, 16, 512


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of one sequence of `context_tokens`, filled with random rows."""

    kernels: KernelBackend
    layout: CacheLayout
    table: np.ndarray
    held: tuple[object, ...]

    @classmethod
    def of(
        cls,
        backend: str,
        codec: str,
        context_tokens: int,
        threads: int,
        centred: bool = True,
        sparse: Sparse | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> Cache:
        layers = (LayerSpec(attention_planes(KV_HEADS, HEAD_DIM), Full()),) * LAYERS
        layout = CacheLayout.of(CacheSpec.of(layers, block_tokens, sparse), uniform(codec))
        n_blocks = ceil_div(context_tokens, block_tokens)
        arena = HostArena(layout.sectors_for([n_blocks]) * layout.sector_bytes)
        limits = Limits(1, STEP_TOKENS, context_tokens, threads)
        module = cast(KernelModule, load_plugin("holdover.kernels", backend))
        scratch = torch.zeros(
            module.workspace_bytes(layout, limits, QUERY_HEADS), dtype=torch.uint8
        )
        table = np.random.default_rng(0).permutation(n_blocks).astype(np.int32)[None]
        centres = centres_of(layout, context_tokens) if centred else {}
        kernels = module.bind(arena.bytes, layout, limits, scratch, centres)
        return cls(kernels, layout, table, (arena, scratch))

    def begin(self, start: int, stop: int, prompt_tokens: int | None = None) -> object:
        """All tokens are of a prompt where it is not said how many are."""
        starts, contexts = np.array([0, stop - start]), np.array([stop])
        prompts = contexts if prompt_tokens is None else np.array([prompt_tokens])
        batch = AttentionBatch(
            starts.astype(np.int32),
            contexts.astype(np.int32),
            (self.table.copy(),),
            prompts.astype(np.int32),
        )
        return self.kernels.begin(batch)

    def fill(
        self, context_tokens: int, step_tokens: int = STEP_TOKENS, attend: bool = False
    ) -> None:
        """Write the rows of all tokens, in steps, and attend to them too."""
        for start in range(0, context_tokens, step_tokens):
            stop = min(start + step_tokens, context_tokens)
            step = self.begin(start, stop)
            rows = torch.randn(stop - start, KV_HEADS, HEAD_DIM)
            query = torch.randn(stop - start, QUERY_HEADS, HEAD_DIM)
            for layer in range(LAYERS):
                step.write(layer, {"k": rows, "v": rows})
                if attend:
                    step.attend(layer, query, HEAD_DIM**-0.5)

    def decode(self, context_tokens: int, prompt_tokens: int | None = None) -> None:
        step = self.begin(context_tokens - 1, context_tokens, prompt_tokens)
        query = torch.randn(1, QUERY_HEADS, HEAD_DIM)
        for layer in range(LAYERS):
            step.attend(layer, query, HEAD_DIM**-0.5)


def centres_of(layout: CacheLayout, context_tokens: int) -> Centres:
    """Random ones, for keys whose codec asks for them: what they are takes no time."""
    shapes = CentreLayout.of(layout.spec, centred_layers(layout), (0,) * LAYERS, context_tokens)
    turns = 1e-5 ** torch.linspace(0, 1, HEAD_DIM // 2)
    tables = {rope: turn_table(turns, shape) for rope, shape in shapes.tables.items()}
    return {
        layer: Centre(torch.rand(shape) + 0.5, tables[0]) for layer, shape in shapes.rows.items()
    }


def compare(lines: Sequence[Line], backends: Sequence[str]) -> None:
    """How much faster than bf16 each codec is."""
    medians = {line.name: statistics.median(line.seconds) for line in lines}
    for backend in backends:
        bf16 = medians.get(f"{backend} bf16", 0.0)
        others = {name: t for name, t in medians.items() if name.startswith(f"{backend} ")}
        ratios = [f"{name.split()[1]} {bf16 / t:.2f}" for name, t in others.items() if t != bf16]
        if bf16 and ratios:
            print(f"{backend}, times faster than bf16: {', '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", default="16,128,512,2000,6000")
    parser.add_argument("--codecs", default="fp32,bf16,int8,int4")
    parser.add_argument("--backends", default="native,reference")
    parser.add_argument("--prefill", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="one thread, on a busy machine")
    asked = parser.parse_args()
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    threads = 1 if asked.cpu_time else asked.threads
    torch.set_num_threads(threads)
    backends, codecs = asked.backends.split(","), asked.codecs.split(",")
    plain = plain_memory(clock)
    for context_tokens in map(int, asked.contexts.split(",")):
        print(f"decode at {context_tokens} tokens, {threads} threads: a step, all layers")
        lines = []
        for backend in backends:
            for codec in codecs:
                cache = Cache.of(backend, codec, context_tokens, threads)
                cache.fill(context_tokens)
                n_bytes = cache.layout.read_bytes(context_tokens)
                run = lambda c=cache, n=context_tokens: c.decode(n)  # noqa: E731
                lines.append(Line(f"{backend} {codec}", n_bytes, run, clock))
        measure(lines, asked.rounds, plain)
        compare(lines, backends)
    if asked.prefill:
        print(f"prefill of {asked.prefill} tokens in steps of {STEP_TOKENS}: write and attend")
        lines = []
        for backend in backends:
            for codec in codecs:
                cache = Cache.of(backend, codec, asked.prefill, threads)
                run = lambda c=cache: c.fill(asked.prefill, attend=True)  # noqa: E731
                n_bytes = cache.layout.read_bytes(asked.prefill)
                # query and key, weight and value: 2 products of a multiplication and an addition
                seen = asked.prefill * (asked.prefill + 1) / 2
                operations = 4.0 * seen * LAYERS * QUERY_HEADS * HEAD_DIM
                lines.append(Line(f"{backend} {codec}", n_bytes, run, clock, operations))
        measure(lines, max(1, asked.rounds // 10), None)
        compare(lines, backends)


if __name__ == "__main__":
    main()
