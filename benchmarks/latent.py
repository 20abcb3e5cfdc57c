"""Latent attention at DeepSeek-V2's geometry: bytes of its cache, and decoding in absorbed form.

    python benchmarks/latent.py [--context 4096] [--codecs bf16,int8,int4] [--rounds 5] [--cpu-time]

One decoding sequence, one layer, 128 heads. Absorbed: each head's query through its part of the up
projection, the native kernels over the cached latents, and what they mix through its part to the
heads' values. Expanded: the same latents up to the keys and values of all heads in one product of
torch's, and attention over these; the latents are there in fp32, so that nothing is decoded. Kept:
the native kernels over a cache of all heads' keys and values in bf16, which is what a model without
latents has. Rounds go A B, A B: of each the ratio is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from rounds import Line, measure
from torch import Tensor

from holdover.cache.arena import HostArena
from holdover.codecs.base import uniform
from holdover.kernels import native
from holdover.kernels.base import AttentionBatch, AttentionStep, KernelBackend
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import Attended, LayerSpec, Plane, latent_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Full
from holdover.units import ceil_div, exact_div

HEADS, RANK, ROPE, NOPE, VALUE, BLOCK_TOKENS, STEP_TOKENS = 128, 512, 64, 128, 128, 16, 512
LATENTS = latent_planes(RANK, ROPE)
OF_HEADS = (Plane("k", HEADS, NOPE + ROPE), Plane("v", HEADS, VALUE))
SCALE = (NOPE + ROPE) ** -0.5


def layout_of(planes: tuple[Plane, ...], codec: str) -> CacheLayout:
    spec = CacheSpec.of((LayerSpec(planes, Full()),), BLOCK_TOKENS)
    return CacheLayout.of(spec, uniform(codec))


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer of one sequence, filled with random rows in scattered blocks."""

    kernels: KernelBackend
    layout: CacheLayout
    table: np.ndarray
    held: tuple[object, ...]

    @classmethod
    def of(
        cls, planes: tuple[Plane, ...], codec: str, rows: dict[str, Tensor], threads: int
    ) -> Cache:
        layout, context = layout_of(planes, codec), len(next(iter(rows.values())))
        n_blocks = ceil_div(context, BLOCK_TOKENS)
        arena = HostArena(layout.sectors_for([n_blocks]) * layout.sector_bytes)
        limits = Limits(1, STEP_TOKENS, context, threads)
        scratch = torch.zeros(native.workspace_bytes(layout, limits, HEADS), dtype=torch.uint8)
        table = np.random.default_rng(0).permutation(n_blocks).astype(np.int32)[None]
        kernels = native.bind(arena.bytes, layout, limits, scratch)
        cache = cls(kernels, layout, table, (arena, scratch))
        for start in range(0, context, STEP_TOKENS):
            stop = min(start + STEP_TOKENS, context)
            step = cache.begin(start, stop)
            step.write(0, {name: of_plane[start:stop] for name, of_plane in rows.items()})
        return cache

    def begin(self, start: int, stop: int) -> AttentionStep:
        starts, contexts = np.array([0, stop - start]), np.array([stop])
        tables = (self.table.copy(),)
        return self.kernels.begin(
            AttentionBatch(starts.astype(np.int32), contexts.astype(np.int32), tables)
        )

    def attend(self, query: Tensor) -> Tensor:
        context = self.table.shape[1] * BLOCK_TOKENS
        return self.begin(context - 1, context).attend(0, query, SCALE)


@dataclass(frozen=True, slots=True)
class Layer:
    """The up projection [heads, nope + value, rank], a query, and the latents it meets."""

    up: Tensor
    nope: Tensor  # [1, heads, nope dim]
    turned: Tensor  # [1, heads, rope dim]
    latent: Tensor  # [context, rank]
    rope: Tensor  # [context, rope dim]

    @classmethod
    def random(cls, context: int) -> Layer:
        torch.manual_seed(0)
        return cls(
            torch.randn(HEADS, NOPE + VALUE, RANK) * RANK**-0.5,
            torch.randn(1, HEADS, NOPE),
            torch.randn(1, HEADS, ROPE),
            torch.randn(context, RANK),
            torch.randn(context, ROPE),
        )

    def absorbed(self, cache: Cache) -> Tensor:
        inner = torch.bmm(self.nope.transpose(0, 1), self.up[:, :NOPE]).transpose(0, 1)
        mixed = cache.attend(torch.cat((inner, self.turned), -1))
        return torch.bmm(mixed.transpose(0, 1), self.up[:, NOPE:].transpose(1, 2)).transpose(0, 1)

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        rows = F.linear(self.latent, self.up.flatten(0, 1)).view(-1, HEADS, NOPE + VALUE)
        return rows[..., :NOPE], rows[..., NOPE:]

    def expanded(self) -> Tensor:
        keys, values = self.keys_and_values()
        scores = torch.bmm(self.nope.transpose(0, 1), keys.permute(1, 2, 0))
        scores += (self.turned[0] @ self.rope.T)[:, None]
        weights = (scores * SCALE).softmax(-1)
        return torch.bmm(weights, values.transpose(0, 1)).transpose(0, 1)

    def kept(self, cache: Cache) -> Tensor:
        return cache.attend(torch.cat((self.nope, self.turned), -1))


def show_bytes(context: int) -> None:
    of_heads = layout_of(OF_HEADS, "bf16").logical_bytes(context)
    print(f"keys and values of {HEADS} heads, bf16: {of_heads:,} bytes a layer at {context} tokens")
    for codec in ("bf16", "int8", "int4"):
        n_bytes = layout_of(LATENTS, codec).logical_bytes(context)
        print(f"latents, {codec}: {n_bytes:,} bytes, {1 - n_bytes / of_heads:.1%} less")


def compare(name: str, a: Line, b: Line) -> None:
    ratios = [slow / fast for fast, slow in zip(a.seconds, b.seconds, strict=True)]
    each = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    print(f"{name}: {statistics.median(ratios):.1f} times faster (rounds: {each})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--codecs", default="bf16,int8,int4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="one thread, on a busy machine")
    asked = parser.parse_args()
    clock: Callable[[], float] = time.thread_time if asked.cpu_time else time.perf_counter
    threads = 1 if asked.cpu_time else asked.threads
    torch.set_num_threads(threads)
    context = exact_div(asked.context, BLOCK_TOKENS) * BLOCK_TOKENS
    show_bytes(context)
    layer = Layer.random(context)
    rows = {"latent": layer.latent[:, None], "rope": layer.rope[:, None]}
    want = layer.expanded()
    lines = []
    for codec in asked.codecs.split(","):
        cache = Cache.of(LATENTS, codec, rows, threads)
        off = float((layer.absorbed(cache) - want).abs().max() / want.abs().max())
        print(f"absorbed, {codec}: at most {off:.1e} of the largest value from the expanded form")
        attended = Attended.of(LATENTS)
        assert attended is not None
        n_flops = 2.0 * HEADS * context * (attended.query_dim + attended.values.dim)
        run = lambda c=cache: layer.absorbed(c)  # noqa: E731
        lines.append(
            Line(f"absorbed {codec}", cache.layout.read_bytes(context), run, clock, n_flops)
        )
    keys, values = layer.keys_and_values()
    keys = torch.cat((keys, layer.rope[:, None].expand(-1, HEADS, -1)), -1)
    of_heads = Cache.of(OF_HEADS, "bf16", {"k": keys, "v": values}, threads)
    n_bytes = of_heads.layout.read_bytes(context)
    kept = Line("kept bf16", n_bytes, lambda: layer.kept(of_heads), clock)
    expanded = Line("expanded", layer.latent.nbytes, layer.expanded, clock)
    measure([*lines, kept, expanded], asked.rounds, None)
    for line in lines:
        compare(f"{line.name} than expanded", line, expanded)
        compare(f"{line.name} than kept", line, kept)


if __name__ == "__main__":
    main()
