"""What a model's keys have in common, found by computing a short text when it is loaded.

See `kernels._centre` for what it is used for. The text is always the same, so on one machine, with
the same threads and instruction set, so is what is found; `digest` tells two findings apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdover.cache.arena import host_bytes
from holdover.codecs.base import uniform
from holdover.geometry.base import Geometry
from holdover.kernels._centre import Centre, Centres, turn_table
from holdover.kernels._tapped import TappedStep
from holdover.kernels.base import AttentionBatch, KernelModule
from holdover.models import _rope
from holdover.models.base import Model
from holdover.spec.centres import CentreLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.text.tokenizer import Tokenizer
from holdover.units import ceil_div

TEXT_TOKENS = 256
STEP_TOKENS = 64  # few enough that a step's queries and keys of all layers take little room
TEXT = """\
The harbour lies at the end of a long valley, where the river slows down and turns brown. Boats
come in with the tide, a little after six, and by seven the market is full of people who ask what
the fish costs today. "Four for a pound," says Ann, "and not a penny less." Her brother laughs; he
has heard it every morning for thirty years.

In 1869 a railway was built, 42.5 km of it, at a price of $1,250,000. It was never paid back. The
line closed in the spring of 1931, because lorries were cheaper. What is left is a path on which
children ride their bicycles, three bridges, and a station that is now a library.

def average(numbers: list[float]) -> float:
    if not numbers:
        raise ValueError("no numbers")
    return sum(numbers) / len(numbers)

Question: Why does ice float on water? Answer: Water is densest at about 4 degrees. When it
freezes, its molecules form an open lattice that takes more room, so that ice weighs less than the
water which it displaces. If it sank, lakes would freeze from the bottom up.

- first, read the instructions and check that nothing is missing;
- then join parts A and B with the longer screws (not too tight);
- at last, let it dry for two hours before you use it.
"""


def text_tokens(tokenizer: Tokenizer) -> list[int]:
    """TEXT as the model reads it, TEXT_TOKENS long."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    first = list(tokenizer.prefix_ids)
    tokens *= ceil_div(TEXT_TOKENS, len(tokens))
    return [*first, *tokens][:TEXT_TOKENS]


def find_centres(
    model: Model,
    kernels: KernelModule,
    layout: CentreLayout,
    spec: CacheSpec,
    limits: Limits,
    tokens: Sequence[int],
) -> Centres:
    """Computes `tokens` exactly, through a cache of its own that is gone afterwards."""
    if not layout.rows:
        return {}
    geometry = model.geometry
    found = {layer: _Moments(geometry, layer) for layer in layout.rows}
    _compute(model, kernels, spec, limits, tokens[: limits.max_context_tokens], found)
    tables = {
        rope: turn_table(_rope.frequencies(geometry.ropes[rope]), shape)
        for rope, shape in layout.tables.items()
    }
    return {
        layer: Centre(found[layer].rows(), tables[geometry.layer_ropes[layer]])
        for layer in layout.rows
    }


def nbytes(centres: Centres) -> int:
    """Bytes of all tensors, those that layers share once."""
    tensors = [t for centre in centres.values() for t in (centre.rows, centre.table)]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def digest(centres: Centres) -> bytes:
    """Keys stored less these centres are no hit where others are found; empty where none are."""
    if not centres:
        return b""
    found = hashlib.blake2b(digest_size=32)
    for layer, centre in sorted(centres.items()):
        found.update(f"layer {layer}".encode() + centre.rows.numpy().tobytes())
    return found.digest()


@dataclass(slots=True)
class _Moments:
    """Sums over the tokens of one layer's queries and keys, turned back to position 0."""

    geometry: Geometry
    layer: int
    n_tokens: int = 0
    keys: Tensor = field(init=False)  # [KV heads, dim], as the others
    key_squares: Tensor = field(init=False)
    query_squares: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = self.geometry.kv_heads, self.geometry.head_dim
        self.keys, self.key_squares, self.query_squares = torch.zeros(3, *shape).double()

    def add(self, kind: str, rows: Tensor, positions: Tensor) -> None:
        """Of new tokens: queries "q" or keys "k" [tokens, heads, dim]."""
        turned = self._turned_back(rows, positions)
        squares = turned.square().sum(0)
        if kind == "k":
            self.n_tokens += len(turned)
            self.keys += turned.sum(0)
            self.key_squares += squares
        else:  # those that share a key's head count alike
            self.query_squares += squares.view(*self.keys.shape[:1], -1, rows.shape[-1]).mean(1)

    def rows(self) -> Tensor:
        """Mean and spread, [2, KV heads, dim].

        Errors of stored keys are alike in all dims; times queries, they are least when a key's
        share of them is as its deviation over the query's size. The two dims of a pair have one
        spread, and a head's spreads are 1 in their geometric mean.
        """
        mean = self.keys / self.n_tokens
        deviations = (self.key_squares / self.n_tokens - mean.square()).clamp(min=0)
        sizes = self.query_squares / self.n_tokens
        logs = (deviations.log() - sizes.log()) / 4
        half = logs.shape[-1] // 2
        pairs = (logs[:, :half] + logs[:, half:]) / 2
        pairs = pairs - pairs.mean(-1, keepdim=True)
        spread = torch.cat((pairs, pairs), -1).exp()
        if not (spread.isfinite() & (spread > 0)).all():  # keys that never differ
            spread = torch.ones_like(spread)
        return torch.stack((mean.nan_to_num(0.0, 0.0, 0.0), spread)).float()

    def _turned_back(self, rows: Tensor, positions: Tensor) -> Tensor:
        """As float64. A factor of the rope's stays: it is the key's own."""
        g = self.geometry
        rope = g.ropes[g.layer_ropes[self.layer]]
        angles = _rope.angles(
            replace(rope, attention_factor=1.0),
            -_rope.frequencies(rope),
            positions,
            torch.float32,
        )
        return _rope.rotate(rows, angles).double()


@torch.inference_mode()
def _compute(
    model: Model,
    kernels: KernelModule,
    spec: CacheSpec,
    limits: Limits,
    tokens: Sequence[int],
    found: dict[int, _Moments],
) -> None:
    layout = CacheLayout.of(spec, uniform("fp32"))
    step_tokens = min(STEP_TOKENS, limits.step_tokens)
    limits = replace(
        limits, max_sequences=1, step_tokens=step_tokens, max_context_tokens=len(tokens)
    )
    n_blocks = ceil_div(len(tokens), spec.block_tokens)
    tables = _tables(layout, n_blocks)
    n_sectors = layout.sectors_for([n_blocks] * len(tables))
    arena = host_bytes(n_sectors * layout.sector_bytes, "keys and values of a first text")
    workspace_bytes = kernels.workspace_bytes(layout, limits, model.geometry.query_heads)
    workspace = torch.zeros(workspace_bytes, dtype=torch.uint8)
    backend = kernels.bind(arena, layout, limits, workspace)
    for start in range(0, len(tokens), step_tokens):
        part = torch.tensor(tokens[start : start + step_tokens])
        positions = torch.arange(start, start + len(part))
        starts, contexts = np.array([0, len(part)]), np.array([start + len(part)])
        batch = AttentionBatch(starts.astype(np.int32), contexts.astype(np.int32), tables)

        def take(kind: str, layer: int, rows: Tensor, at: Tensor = positions) -> None:
            if layer in found:
                found[layer].add(kind, rows, at)

        step = TappedStep(backend.begin(batch), take)
        model.forward(part, positions, step, torch.empty(0, dtype=torch.int64))


def _tables(layout: CacheLayout, n_blocks: int) -> tuple[NDArray[np.int32], ...]:
    """One sequence's, of `n_blocks` in sectors of its own for each group."""
    tables, sector = [], 0
    for per in layout.blocks_per_sector:
        tables.append(np.arange(sector * per, sector * per + n_blocks, dtype=np.int32)[None])
        sector += ceil_div(n_blocks, per)
    return tuple(tables)
