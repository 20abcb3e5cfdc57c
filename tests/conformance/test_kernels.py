"""Every kernel backend against dense float64 attention, over a paged and poisoned cache.

A world is an arena of 0xFF bytes (NaN in every float type) in which only live rows are ever
written: free blocks, other groups' blocks, rows behind the window and unused rows of a block all
stay NaN, dead table entries are -1. Scratch is exactly what the backend asked for, with canary
bytes after it, and new tensors are filled with NaN.

Tolerances, for rows of unit variance: 1e-5 against the oracle on the rows as the codec gives them
back, plus 16 times the codec's stated error against the oracle on the exact rows (the error is a
fraction of the largest magnitude in a head, which is about 4). Native kernels multiply the levels
of int8 and int4 as integers: queries and weights then have 15 bits below the largest of their row,
half a step of which is 4 / 2^16, and 4e-4 is allowed; int8 itself is off by 1.6e-2. With bf16
instructions weights of bf16 values are rounded to bf16, by 2^-9 of each, and 2^-8 is allowed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdover.codecs.base import Codec, codec_names, get_codec
from holdover.kernels._centre import Centre, turn_table
from holdover.kernels.base import AttentionBatch, AttentionStep
from holdover.kernels.native.availability import ISA_VARIABLE, extension
from holdover.registry import load_plugin, plugin_names
from holdover.spec.centres import CentreLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import Attended, LayerSpec, Plane, latent_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Chunk, Full, Residency, Window, step_blocks
from holdover.spec.sparse import Sparse
from holdover.units import ceil_div

BACKENDS = plugin_names("holdover.kernels")
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
EXACT = 1e-5
INTEGERS = 4e-4
BF16_WEIGHTS = 2.0**-8
CANARY = 0xA5

RESIDENCIES = (Full(), Window(5), Window(20), Window(6, 3), Window(9, 20), Chunk(8), Chunk(12, 2))
HEADS = ((2, 2), (6, 2), (4, 1))  # query heads, KV heads: MHA, GQA, MQA
HEAD_DIMS = (8, 64, 80, 256)
BLOCK_TOKENS = (1, 3, 16)
SOFTCAPS = (0.0, 3.0)
MIXES = {  # (context, queries) of each sequence
    "decode": ((1, 1), (17, 1), (40, 1), (33, 1), (90, 1)),
    "prefill": ((48, 48), (37, 21)),
    "mixed": ((50, 1), (40, 9), (20, 0), (16, 16), (3, 1)),
    "one token": ((1, 1), (1, 1)),
    "block edges": ((16, 1), (32, 16), (48, 1), (33, 1), (17, 2), (15, 3)),
}
AXES = (codec_names(), RESIDENCIES, HEADS, HEAD_DIMS, BLOCK_TOKENS, SOFTCAPS, tuple(MIXES))


def stores(codec: str, head_dim: int) -> bool:
    """Whether a codec takes rows of so many dims; that it refuses others is tested with codecs."""
    return head_dim % 32 == 0 or not codec.startswith("q")


@dataclass(frozen=True, slots=True)
class Case:
    codec: str = "fp32"
    residency: Residency = Full()  # noqa: RUF009  (frozen)
    heads: tuple[int, int] = (6, 2)
    head_dim: int = 64
    block_tokens: int = 16
    softcap: float = 0.0
    mix: str = "mixed"
    value_dim: int | None = None
    dtype: torch.dtype = torch.float32
    threads: int = 2
    centred: bool = False
    sink_query: bool = False  # another query than the rest meets, which shares nothing with it
    sink_logits: bool = False
    rope_dim: int = 0  # of latent attention, over latents of `head_dim`
    rope_codec: str | None = None  # where it is another
    sparse: Sparse | None = None

    def __str__(self) -> str:
        parts = (self.codec, self.residency, self.heads, self.head_dim, self.block_tokens)
        if self.rope_dim:
            parts = (*parts, f"{self.rope_dim}{self.rope_codec or ''}")  # type: ignore[assignment]
        return "-".join(str(part) for part in (*parts, self.softcap, self.mix)).replace(" ", "")


@dataclass(frozen=True, slots=True)
class Running:
    """A sequence: rows by (layer, plane) [context, heads, dim] and [queries, query_heads, dim].

    The second query is used where the case has one.
    """

    context: int
    queries: int
    rows: dict[tuple[int, str], Tensor]
    query: Tensor
    sink_query: Tensor

    @property
    def start(self) -> int:
        return self.context - self.queries


def pairwise(axes: Sequence[Sequence[Any]]) -> list[Case]:
    """Few cases in which every two values of two axes meet."""
    pairs = list(combinations(range(len(axes)), 2))
    everything = [values for values in product(*axes) if stores(values[0], values[3])]
    wanted = {(i, values[i], j, values[j]) for values in everything for i, j in pairs}
    random.Random(0).shuffle(everything)
    chosen = []
    for enough in (len(pairs), len(pairs) // 2, 1):  # greedy: the most useful cases first
        for values in everything:
            met = wanted & {(i, values[i], j, values[j]) for i, j in pairs}
            if len(met) >= enough:
                wanted -= met
                chosen.append(Case(*values))
    return chosen


class World:
    """One arena with two groups of layers (0, 2 and 1; 3 reads the rows of 0), and its backend."""

    def __init__(self, backend: str, case: Case, lengths: Sequence[tuple[int, int]], seed: int = 0):
        self.case, self.random = case, np.random.default_rng(seed)
        planes = self._planes(case)
        last = planes[1]
        more = 8 if stores(self._codec(last.name).name, last.dim + 8) else 32
        wider = (planes[0], replace(last, dim=last.dim + more))  # leaves sectors a remainder
        other: Residency = Window(7) if case.residency == Full() else Full()
        mine = LayerSpec(planes, case.residency)
        layers = (mine, LayerSpec(wider, other), mine, LayerSpec(planes, case.residency, 0))
        self.spec = CacheSpec.of(layers, case.block_tokens, case.sparse)
        self.prompts: list[int] | None = None  # tokens of each sequence's prompt
        self.layout = CacheLayout.of(self.spec, lambda _, plane: self._codec(plane.name))
        step_tokens = max(1, sum(queries for _, queries in lengths))
        most = max(context for context, _ in lengths)
        limits = Limits(len(lengths), step_tokens, most, case.threads)
        needs = [ceil_div(context, case.block_tokens) for context, _ in lengths]
        sectors = [ceil_div(2 * sum(needs), per) for per in self.layout.blocks_per_sector]
        self.arena = torch.full(((sum(sectors) + 1) * self.layout.sector_bytes,), 0xFF).byte()
        self.tables = self._deal(sectors, needs)
        module = load_plugin("holdover.kernels", backend)
        self.workspace_bytes = module.workspace_bytes(self.layout, limits, case.heads[0])
        self.room = torch.full((self.workspace_bytes + 4096,), CANARY).byte()
        self.room[: self.workspace_bytes] = 0xFF
        workspace = self.room[: self.workspace_bytes]
        self.centres = self._make_centres(most) if case.centred else {}
        self.backend = module.bind(self.arena, self.layout, limits, workspace, self.centres)

    def _planes(self, case: Case) -> tuple[Plane, ...]:
        kv_heads, dim = case.heads[1], case.head_dim
        if case.rope_dim:
            return latent_planes(dim, case.rope_dim)
        return (Plane("k", kv_heads, dim), Plane("v", kv_heads, case.value_dim or dim))

    def _codec(self, plane: str) -> Codec:
        other = self.case.rope_codec if plane == "rope" else None
        return get_codec(other or self.case.codec)

    @property
    def max_error(self) -> float:
        """Of the worse of two codecs."""
        return max(self._codec(plane).max_error for plane in ("latent", "rope"))

    def _make_centres(self, max_context_tokens: int) -> dict[int, Centre]:
        """Layer 1 has another rope than layers 0 and 2, as window layers have. The means are
        several times what keys differ by."""
        generator = torch.Generator().manual_seed(5)
        layout = CentreLayout.of(self.spec, (0, 1, 2), (0, 1, 0, 0), max_context_tokens)
        tables = {
            rope: turn_table(theta ** -torch.linspace(0, 1, shape[1] // 2), shape)
            for theta, (rope, shape) in zip((1e4, 1e2), layout.tables.items(), strict=True)
        }
        centres = {}
        for layer, shape in layout.rows.items():
            means = 4 * torch.randn(shape[1:], generator=generator)
            spreads = 2.0 ** torch.rand(shape[1:], generator=generator)
            centres[layer] = Centre(torch.stack((means, spreads)), tables[int(layer == 1)])
        assert layout.nbytes == 4 * sum(
            t.numel() for t in (*tables.values(), *(c.rows for c in centres.values()))
        )
        return centres

    def as_stored(self, layer: int, plane: str, rows: Tensor) -> Tensor:
        """What the codec gives back of a layer's rows at positions 0, 1, ..."""
        codec = self._codec(plane)
        if plane != "k" or layer not in self.centres:
            return codec.decode(codec.encode(rows))
        centre, positions = self.centres[layer], torch.arange(len(rows))
        stored = centre.stored(rows.float(), positions)
        found = codec.decode(codec.encode(stored))
        centre.restore(found, positions)
        return found

    def _deal(self, sectors: list[int], needs: list[int]) -> list[np.ndarray]:
        """Per group, a table of scattered block numbers in sectors that only it holds."""
        numbers = self.random.permutation(sum(sectors) + 1)
        tables = []
        for count, per in zip(sectors, self.layout.blocks_per_sector, strict=True):
            mine, numbers = numbers[:count], numbers[count:]
            blocks = self.random.permutation((mine[:, None] * per + np.arange(per)).reshape(-1))
            table = np.full((len(needs), max(needs)), -1, dtype=np.int32)
            for row, need in enumerate(needs):
                table[row, :need], blocks = blocks[:need], blocks[need:]
            tables.append(table)
        return tables

    def begin(self, spans: Sequence[tuple[int, int]]) -> AttentionStep:
        """A step in which sequence s computes tokens [start, stop)."""
        tables = []
        for group, table in zip(self.spec.groups, self.tables, strict=True):
            live = np.full_like(table, -1)
            for row, (start, stop) in enumerate(spans):
                need = step_blocks(group.residency, start, stop, self.case.block_tokens)
                blocks = [b for b in range(table.shape[1]) if b in need]
                live[row, blocks] = table[row, blocks]
            tables.append(live)
        starts = np.cumsum([0] + [stop - start for start, stop in spans]).astype(np.int32)
        contexts = np.array([stop for _, stop in spans], dtype=np.int32)
        prompts = None if self.prompts is None else np.array(self.prompts, dtype=np.int32)
        return self.backend.begin(AttentionBatch(starts, contexts, tuple(tables), prompts))

    def write(self, step: AttentionStep, pieces: Sequence[dict[tuple[int, str], Tensor]]) -> None:
        for layer in (0, 1, 2):
            names = [plane.name for plane in self.spec.layers[layer].planes]
            step.write(layer, {p: torch.cat([rows[layer, p] for rows in pieces]) for p in names})

    def store_history(self, sequences: Sequence[Running]) -> None:
        """Write what precedes the step, with NaN for rows that its queries cannot see."""
        contexts = np.array([s.start for s in sequences], dtype=np.int32)
        starts = np.cumsum([0, *contexts]).astype(np.int32)
        pieces = []
        for s in sequences:
            piece = {key: rows[: s.start].clone() for key, rows in s.rows.items()}
            for (layer, _), rows in piece.items():
                residency = self.spec.layers[layer].residency
                dead = [j for j in range(s.start) if not visible(residency, s.start, j)]
                rows[dead] = torch.nan
            pieces.append(piece)
        self.write(self.backend.begin(AttentionBatch(starts, contexts, tuple(self.tables))), pieces)

    def step(self, sequences: Sequence[Running], layer: int = 0) -> list[Tensor]:
        """The result of each sequence's queries, after writing their rows too."""
        step = self.begin([(s.start, s.context) for s in sequences])
        self.write(step, [{k: rows[s.start :] for k, rows in s.rows.items()} for s in sequences])
        query, sink_query = (
            torch.cat([getattr(s, name) for s in sequences])[..., : self.query_dim(layer)]
            for name in ("query", "sink_query")
        )
        result = step.attend(
            layer,
            query,
            self.case.head_dim**-0.5,
            self.case.softcap,
            sink_query=sink_query if self.case.sink_query else None,
            sink_logits=sink_logits(self.case),
        )
        assert result.dtype == self.case.dtype
        assert (self.room[self.workspace_bytes :] == CANARY).all(), "wrote past the workspace"
        return list(result.float().split([s.queries for s in sequences]))

    def sequences(self, lengths: Sequence[tuple[int, int]]) -> list[Running]:
        """Random rows and queries, as the codec takes them and in the case's dtype."""
        generator = torch.Generator().manual_seed(int(self.random.integers(2**31)))
        made = []
        for context, queries in lengths:
            rows = {
                (layer, plane.name): torch.randn(
                    context, plane.heads, plane.dim, generator=generator
                ).to(self.case.dtype)
                for layer in (0, 1, 2)
                for plane in self.spec.layers[layer].planes
            }
            shape = (queries, self.case.heads[0], self.query_dim(1))
            for layer, centre in self.centres.items():
                keys = rows[layer, "k"].float()
                centre.restore(keys, torch.arange(context))
                rows[layer, "k"] = keys.to(self.case.dtype)
            query, sink_query = (
                torch.randn(shape, generator=generator).to(self.case.dtype) for _ in range(2)
            )
            made.append(Running(context, queries, rows, query, sink_query))
        return made

    def query_dim(self, layer: int) -> int:
        attended = Attended.of(self.spec.layers[layer].planes)
        assert attended is not None
        return attended.query_dim

    def free_bytes_are_untouched(self) -> bool:
        """Whether every byte outside the tables' blocks is what it was."""
        used = torch.zeros(len(self.arena), dtype=torch.bool)
        for group, table in enumerate(self.tables):
            for block in table[table >= 0].tolist():
                offset = self.layout.block_offset(group, block)
                used[offset : offset + self.layout.blocks[group].nbytes] = True
        return bool((self.arena[~used] == 0xFF).all())


def sink_logits(case: Case) -> Tensor | None:
    """From next to nothing to more than all scores together."""
    return torch.linspace(-9, 12, case.heads[0]) if case.sink_logits else None


def visible(residency: Residency, query: int, key: int) -> bool:
    """The rules once more, in their plainest form."""
    if key > query:
        return False
    match residency:
        case Window(window_tokens, sink_tokens):
            return query - key < window_tokens or key < sink_tokens
        case Chunk(chunk_tokens, sink_tokens):
            return query // chunk_tokens == key // chunk_tokens or key < sink_tokens
    return True


def dense(world: World, running: Running, layer: int, exact: bool, sizes: bool = False) -> Tensor:
    """Attention of a sequence's queries in float64, every head and score written out; `sizes`: to
    the magnitudes of values."""
    case, residency = world.case, world.spec.layers[layer].residency
    storage, shared = world.spec.storage_layer(layer), case.heads[0] // case.heads[1]
    stored = [
        (rows if exact else world.as_stored(storage, plane, rows)).double()
        for plane, rows in (
            (p.name, running.rows[storage, p.name]) for p in world.spec.layers[layer].planes
        )
    ]
    if case.rope_dim:
        stored = [torch.cat(stored, -1), stored[0]]
    keys, values = (rows.repeat_interleave(shared, 1) for rows in stored)
    query = running.query[..., : keys.shape[-1]]
    positions = range(running.start, running.context)
    pairs = [[not visible(residency, p, j) for j in range(running.context)] for p in positions]
    hidden = torch.tensor(pairs, dtype=torch.bool).view(running.queries, running.context)
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys)
    if case.sink_query:
        sinks = keys[: residency.sink_tokens]
        found = torch.einsum("qhd,khd->hqk", running.sink_query.double(), sinks)
        scores[..., : len(sinks)] = found
    scores *= case.head_dim**-0.5
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores.masked_fill(hidden, -torch.inf)
    logits = sink_logits(case)
    if logits is not None:
        column = logits.double()[:, None, None].expand(-1, running.queries, 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., : running.context]
    return torch.einsum("hqk,khd->qhd", weights, values.abs() if sizes else values)


def rounding_of(backend: str, case: Case) -> float:
    """What a backend's arithmetic is allowed beside the codec's error."""
    if backend == "reference":
        return EXACT
    allowed = EXACT
    if {case.codec, case.rope_codec} & {"int8", "int4"}:
        allowed = INTEGERS * (2 if case.rope_dim else 1)  # two products make a score
    return max(allowed, weight_rounding(backend, case))


def weight_rounding(backend: str, case: Case) -> float:
    """Weights of values in bf16 are rounded, 2^-9 of each, and their sum is of the rounded ones."""
    rounds = backend == "native" and extension().rounds_rows(os.environ[ISA_VARIABLE])
    return BF16_WEIGHTS if rounds and case.codec == "bf16" else 0.0


def check(
    backend: str,
    case: Case,
    lengths: Sequence[tuple[int, int]],
    layers: Sequence[int] = (0, 1, 2, 3),
) -> None:
    world = World(backend, case, lengths)
    sequences = world.sequences(lengths)
    world.store_history(sequences)
    rounding = torch.finfo(case.dtype).eps if case.dtype != torch.float32 else 0.0
    for layer in layers:
        for running, got in zip(sequences, world.step(sequences, layer), strict=True):
            assert got.isfinite().all(), f"layer {layer}: NaN reached the result"
            for exact in (False, True):
                want = dense(world, running, layer, exact)
                error = (got - want).abs() - rounding * want.abs()
                allowed = torch.tensor(rounding_of(backend, case), dtype=torch.float64)
                if relative := weight_rounding(backend, case):
                    sized = dense(world, running, layer, exact, sizes=True)
                    allowed = torch.maximum(allowed, relative * sized)
                tolerance = allowed + exact * 16 * world.max_error
                tolerance *= 2 if case.centred else 1  # spreads up to 2
                assert (error <= tolerance).all(), f"layer {layer}: off by {error.max():.2e}"
    assert world.free_bytes_are_untouched()


@pytest.fixture(autouse=True)
def poisoned_new_tensors() -> Iterator[None]:
    """torch fills new tensors with NaN in its deterministic mode."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[*(b for b in BACKENDS if b != "native"), *(f"native-{i}" for i in ISAS)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every backend by its name, and the native one on each instruction set that runs here."""
    name, _, isa = str(request.param).partition("-")
    if isa:
        native = extension()
        if native is None or isa not in native.isas():
            pytest.skip(f"{isa}: not built, or not in this CPU")
        monkeypatch.setenv(ISA_VARIABLE, isa)
    return name


@pytest.mark.parametrize("case", pairwise(AXES), ids=str)
def test_attention_is_the_dense_one(backend: str, case: Case) -> None:
    check(backend, case, MIXES[case.mix])


@pytest.mark.parametrize(
    "case",
    [
        Case("int4", centred=True),
        Case("int4", Window(20), head_dim=96, block_tokens=3, mix="prefill", centred=True),
        Case("int4", Window(6, 3), head_dim=32, block_tokens=40, mix="decode", centred=True),
        Case("int4", Chunk(12, 2), softcap=3.0, dtype=torch.bfloat16, centred=True),
        Case("bf16", softcap=3.0, dtype=torch.bfloat16, centred=True),
        Case("q4_0", Window(20), centred=True),
    ],
    ids=str,
)
def test_centred_keys(backend: str, case: Case) -> None:
    check(backend, case, MIXES[case.mix])


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp8", "int8", "int4", "int4 centred"])
@pytest.mark.parametrize("residency", [Window(6, 3), Window(9, 20), Window(20, 1)], ids=str)
def test_sinks_meet_a_query_of_their_own(backend: str, codec: str, residency: Window) -> None:
    name, _, centred = codec.partition(" ")
    case = Case(name, residency, block_tokens=3, centred=bool(centred), sink_query=True)
    check(backend, case, MIXES["mixed"])
    check(backend, replace(case, block_tokens=16), MIXES["prefill"], layers=[0])
    check(backend, replace(case, heads=(2, 2), softcap=3.0), MIXES["block edges"], layers=[0])


@pytest.mark.parametrize("codec", ["fp32", "int4"])
@pytest.mark.parametrize("residency", [Window(1500, 3), Window(300, 200)], ids=str)
def test_sinks_of_long_contexts(backend: str, codec: str, residency: Window) -> None:
    case = Case(codec, residency, head_dim=32, centred=codec == "int4", sink_query=True)
    lengths = ((2300, 1), (1700, 3), (1024, 1), (480, 130), (40, 1))
    check(backend, replace(case, sink_logits=True), lengths, layers=[0])


def test_sinks_of_bf16_queries(backend: str) -> None:
    case = Case("bf16", Window(9, 5), dtype=torch.bfloat16, sink_query=True, sink_logits=True)
    check(backend, case, MIXES["mixed"], layers=[0])


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize("residency", [Full(), Window(20), Window(6, 3)], ids=str)
def test_learned_sinks(backend: str, codec: str, residency: Residency) -> None:
    case = Case(codec, residency, softcap=3.0, sink_logits=True)
    for mix in ("decode", "mixed"):
        check(backend, case, MIXES[mix], layers=[0, 1])


def test_learned_sinks_of_long_contexts(backend: str) -> None:
    case = Case("bf16", head_dim=16, sink_logits=True)
    check(backend, case, ((2300, 1), (1100, 3), (600, 40)), layers=[0])


def test_centred_keys_of_long_contexts(backend: str) -> None:
    case = Case(codec="int4", residency=Window(1500, 3), head_dim=16, centred=True)
    check(backend, case, ((2300, 1), (1100, 3), (1024, 1), (1025, 40), (40, 1)), layers=[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("residency", RESIDENCIES, ids=str)
def test_attention_is_the_dense_one_everywhere(
    backend: str, codec: str, residency: Residency
) -> None:
    for values in product((codec,), (residency,), *AXES[2:]):
        if stores(codec, values[3]):
            check(backend, Case(*values), MIXES[str(values[-1])], layers=[0])


@pytest.mark.parametrize("residency", RESIDENCIES, ids=str)
def test_long_prefill_in_slices(backend: str, residency: Residency) -> None:
    case = Case(residency=residency, head_dim=8, block_tokens=3)
    check(backend, case, ((150, 150), (170, 90), (140, 1), (160, 41)))


@pytest.mark.parametrize("residency", [Full(), Window(1500, 3), Chunk(1100)], ids=str)
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_long_contexts(backend: str, codec: str, residency: Residency) -> None:
    case = Case(codec=codec, residency=residency, head_dim=16)
    check(backend, case, ((2300, 1), (1100, 3), (1024, 1), (1025, 40), (40, 1)), layers=[0])


@pytest.mark.parametrize("head_dim", [8, 64])
def test_bf16_queries(backend: str, head_dim: int) -> None:
    case = Case(codec="bf16", head_dim=head_dim, dtype=torch.bfloat16)
    check(backend, case, MIXES["mixed"])


def test_values_narrower_than_keys(backend: str) -> None:
    check(backend, Case(head_dim=24, value_dim=16), MIXES["mixed"])


@pytest.mark.parametrize("residency", [Full(), Window(20), Chunk(12, 2)], ids=str)
def test_alone_equals_batched(backend: str, residency: Residency) -> None:
    case, lengths = Case(residency=residency), MIXES["block edges"]
    world = World(backend, case, lengths)
    sequences = world.sequences(lengths)
    world.store_history(sequences)
    for running, batched in zip(sequences, world.step(sequences), strict=True):
        alone = World(backend, case, [(running.context, running.queries)], seed=1)
        alone.store_history([running])
        torch.testing.assert_close(alone.step([running])[0], batched, atol=EXACT, rtol=0)


@pytest.mark.parametrize("residency", [Full(), Window(20, 3), Chunk(12)], ids=str)
def test_chunked_equals_whole(backend: str, residency: Residency) -> None:
    case = Case(residency=residency)
    world = World(backend, case, [(70, 70)])
    [whole] = world.sequences([(70, 70)])
    want = world.step([whole])[0]
    world = World(backend, case, [(70, 70)], seed=1)
    for start, stop in ((0, 1), (1, 33), (33, 34), (34, 70)):
        piece = {key: rows[:stop] for key, rows in whole.rows.items()}
        queries = whole.query[start:stop], whole.sink_query[start:stop]
        running = Running(stop, stop - start, piece, *queries)
        torch.testing.assert_close(world.step([running])[0], want[start:stop], atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    "codec", ["fp32", "bf16", "int8", "int4", "int4 centred", "bf16 latent", "int4 latent"]
)
@pytest.mark.parametrize(
    "residency", [Full(), Window(700, 3), Window(500, 140), Chunk(1100)], ids=str
)
def test_native_results_are_the_same_bit_for_bit(
    backend: str, codec: str, residency: Residency
) -> None:
    """Whole, in chunks, alone, batched and on one thread: past several partial results of keys."""
    if backend != "native":
        pytest.skip("the reference sums by shape, within a tolerance")
    name, _, kind = codec.partition(" ")
    second = residency == Window(500, 140) and kind != "latent"
    case = Case(
        codec=name,
        residency=residency,
        head_dim=64,
        centred=kind == "centred",
        sink_query=second,
    )
    if kind == "latent":
        case = replace(case, heads=(6, 1), rope_dim=32 if name == "bf16" else 64)
    context = 2300
    world = World(backend, case, [(context, context)])
    [whole] = world.sequences([(context, context)])
    want = world.step([whole])[0]
    world = World(backend, case, [(context, context)], seed=1)
    for start, stop in ((0, 1000), (1000, 1001), (1001, 2200), (2200, 2299), (2299, 2300)):
        piece = {key: rows[:stop] for key, rows in whole.rows.items()}
        queries = whole.query[start:stop], whole.sink_query[start:stop]
        running = Running(stop, stop - start, piece, *queries)
        assert torch.equal(world.step([running])[0], want[start:stop]), (start, stop)
    last = Running(context, 1, whole.rows, whole.query[-1:], whole.sink_query[-1:])
    for threads, lengths in ((1, []), (2, [(900, 1), (1500, 40), (5, 5)] * 3)):
        world = World(backend, replace(case, threads=threads), [(context, 1), *lengths], seed=2)
        others = world.sequences(lengths)
        world.store_history([last, *others])
        assert torch.equal(world.step([last, *others])[0], want[-1:]), threads


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("codec", ["int8", "int4"])
@pytest.mark.parametrize("latent", [False, True], ids=["heads", "latent"])
def test_levels_are_summed_exactly_in_registers_of_matrices_too(
    codec: str, head_dim: int, latent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one order or another: what AMX adds up is what VNNI does, bit for bit."""
    case = Case(codec, Window(700, 3), head_dim=head_dim, block_tokens=8)
    if latent:
        case = replace(case, heads=(6, 1), rope_dim=64)
    native = extension()
    isas = [] if native is None else native.isas()
    pairs = (("avx512_bf16", "amx"), ("wide_bf16", "wide_amx"))
    here = [pair for pair in pairs if set(pair) <= set(isas)]
    if not here:
        pytest.skip("no instruction set with registers of matrices")
    for pair in here:
        found = []
        for isa in pair:
            monkeypatch.setenv(ISA_VARIABLE, isa)
            lengths = ((1500, 1), (900, 70), (5, 5))
            world = World("native", case, lengths)
            sequences = world.sequences(lengths)
            world.store_history(sequences)
            found.append(torch.cat(world.step(sequences)))
        assert torch.equal(*found), pair


def test_rows_of_a_shared_layer_are_not_written(backend: str) -> None:
    world = World(backend, Case(), [(4, 4)])
    [running] = world.sequences([(4, 4)])
    step = world.begin([(0, 4)])
    with pytest.raises(AssertionError, match="layer 3"):
        step.write(3, {p: running.rows[0, p] for p in "kv"})


@pytest.mark.parametrize("lengths", [((1000, 1),) * 8, ((4000, 100),)], ids=["decode", "prefill"])
def test_scratch_lies_in_the_workspace(
    backend: str, lengths: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the workspace: the result, three times the queries in fp32, and 2 MiB."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    world = World(backend, Case(codec="bf16", heads=(8, 4), head_dim=128), lengths)
    sequences = world.sequences(lengths)
    world.store_history(sequences)
    step = world.begin([(s.start, s.context) for s in sequences])
    world.write(step, [{k: r[s.start :] for k, r in s.rows.items()} for s in sequences])
    query = torch.cat([s.query for s in sequences])
    with torch.profiler.profile(profile_memory=True) as profile:
        result = step.attend(0, query, 128**-0.5)
    changes = [
        e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    gathered_bytes = sum(context for context, _ in lengths) * 2 * 4 * 128 * 4
    bound_bytes = 4 * query.nbytes + 2**21
    peak_bytes = max(accumulate(changes))
    assert result.nbytes <= peak_bytes <= bound_bytes < gathered_bytes
    want = torch.cat([dense(world, running, 0, exact=False) for running in sequences])
    assert (result - want).abs().max() <= rounding_of(backend, world.case)
