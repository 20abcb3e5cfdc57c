"""Sparse layers of every backend against dense attention over the blocks that the paper's rule
reads.

The oracle works the rule out in float64 from the rows as they are stored, and a wrong block would
be far off: rows are random. Groups that are not sparse, and queries of prompts, are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdover.codecs.base import codec_names
from holdover.spec.sparse import BOUNDS, Sparse

from .test_kernels import (
    Case,
    Running,
    World,
    backend,
    dense,
    poisoned_new_tensors,
    rounding_of,
    sink_logits,
)

__all__ = ["backend", "poisoned_new_tensors"]  # fixtures

SPARSE = Sparse(blocks=2, sink_blocks=1, latest_blocks=2, dense_layers=0)
CODECS = [*codec_names(), "int4 centred", "bf16 centred"]


def case_of(codec: str, sparse: Sparse = SPARSE, **changes: object) -> Case:
    name, _, centred = codec.partition(" ")
    return replace(Case(name, centred=bool(centred), sparse=sparse, head_dim=64), **changes)


def read_by(world: World, running: Running, keys: Tensor, position: int, head: int) -> set[int]:
    """The blocks that a KV head, whose `keys` are [tokens, dim], reads for the query at
    `position`."""
    sparse, block_tokens = world.case.sparse, world.case.block_tokens
    assert sparse is not None
    latest = position // block_tokens
    if latest < sparse.read_blocks:
        return set(range(latest + 1))
    shared = world.case.heads[0] // world.case.heads[1]
    query = running.query[position - running.start].double()
    queries = query[head * shared : (head + 1) * shared]
    candidates = range(sparse.sink_blocks, latest - sparse.latest_blocks + 1)
    expected = []
    for block in candidates:
        rows = keys[block * block_tokens : (block + 1) * block_tokens]
        least, most = outwards(rows.amin(0), -1), outwards(rows.amax(0), 1)
        bound = torch.maximum(queries * least, queries * most).sum(1)
        middle = (queries * (least + most) / 2).sum(1)
        expected.append(middle + sparse.reach * (bound - middle))
    shares = (torch.stack(expected, 1) * world.case.head_dim**-0.5).softmax(1).sum(0).tolist()
    promises = dict(zip(candidates, shares, strict=True))
    best = sorted(promises, key=lambda block: (-promises[block], block))[: sparse.blocks]
    always = [*range(sparse.sink_blocks), *range(latest - sparse.latest_blocks + 1, latest + 1)]
    return {*best, *always}


def outwards(edge: Tensor, direction: int) -> Tensor:
    """The nearest bf16 that is not inside."""
    nearest = edge.bfloat16()
    inside = (nearest.double() - edge) * direction < 0
    infinity = torch.full_like(nearest, direction * torch.inf)
    return torch.where(inside, torch.nextafter(nearest, infinity), nearest).double()


def few(world: World, running: Running, layer: int, prompt: int) -> Tensor:
    """Attention in float64 over what each query reads."""
    case, storage = world.case, world.spec.storage_layer(layer)
    shared = case.heads[0] // case.heads[1]
    keys, values = (
        world.as_stored(storage, plane, running.rows[storage, plane]).double() for plane in "kv"
    )
    results = []
    for position in range(running.start, running.context):
        query = running.query[position - running.start].double()
        mixed = []
        for head in range(case.heads[1]):
            blocks = range(position // case.block_tokens + 1)
            if position >= prompt:
                blocks = sorted(read_by(world, running, keys[:, head], position, head))
            tokens = [b * case.block_tokens + i for b in blocks for i in range(case.block_tokens)]
            tokens = [token for token in tokens if token <= position]
            scores = query[head * shared : (head + 1) * shared] @ keys[tokens, head].T
            scores = scores * case.head_dim**-0.5
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            logits = sink_logits(case)
            if logits is not None:
                own = logits.double()[head * shared : (head + 1) * shared]
                scores = torch.cat((scores, own[:, None]), -1)
            mixed.append(scores.softmax(-1)[:, : len(tokens)] @ values[tokens, head])
        results.append(torch.cat(mixed))
    return torch.stack(results)


def world_of(
    name: str, case: Case, lengths: Sequence[tuple[int, int]], prompts: Sequence[int]
) -> tuple[World, list[Running]]:
    world = World(name, case, lengths)
    sequences = world.sequences(lengths)
    world.store_history(sequences)
    world.prompts = list(prompts)
    return world, sequences


LENGTHS = ((150, 1), (100, 6), (64, 1), (70, 5), (97, 1))
PROMPTS = (149, 97, 0, 70, 200)  # the last ones are prompts, however few are computed


@pytest.mark.parametrize("codec", CODECS)
def test_the_blocks_of_the_rule_are_read(backend: str, codec: str) -> None:
    case = case_of(codec)
    world, sequences = world_of(backend, case, LENGTHS, PROMPTS)
    tolerance = rounding_of(backend, case) * (2 if case.centred else 1)
    for layer in (2, 3):
        results = world.step(sequences, layer)
        for running, prompt, got in zip(sequences, PROMPTS, results, strict=True):
            want = few(world, running, layer, prompt)
            assert (got - want).abs().max() <= tolerance, (layer, running.context)
    others = world.step(sequences, 1)  # a window layer
    for running, got in zip(sequences, others, strict=True):
        assert (got - dense(world, running, 1, exact=False)).abs().max() <= tolerance
    assert world.free_bytes_are_untouched()


@pytest.mark.parametrize(
    "changes",
    [
        {"block_tokens": 3, "head_dim": 8},
        {"block_tokens": 40, "head_dim": 80, "heads": (4, 1)},
        {"softcap": 3.0, "heads": (2, 2)},
        {"dtype": torch.bfloat16},
        {"head_dim": 24, "value_dim": 16},
        {"sink_logits": True},
    ],
    ids=str,
)
def test_other_shapes(backend: str, changes: dict[str, object]) -> None:
    case = case_of("bf16", **changes)
    world, sequences = world_of(backend, case, ((290, 1), (260, 12)), (0, 250))
    rounding = torch.finfo(case.dtype).eps if case.dtype != torch.float32 else 0.0
    for running, prompt, got in zip(sequences, (0, 250), world.step(sequences), strict=True):
        want = few(world, running, 0, prompt)
        error = (got - want).abs() - rounding * want.abs()
        assert error.max() <= rounding_of(backend, case)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4 centred"])
def test_where_all_blocks_are_read_results_are_the_dense_ones(backend: str, codec: str) -> None:
    """Bit for bit, and one block more than are read is not."""
    enough = Sparse(blocks=7, sink_blocks=1, latest_blocks=2, dense_layers=0)
    same: list[Tensor] = []
    sequences: list[Running] = []
    lengths = ((160, 1), (150, 3))
    for sparse in (enough, replace(enough, blocks=6), None):
        case = replace(case_of(codec), sparse=sparse)
        world, made = world_of(backend, case, lengths, (0, 0))
        sequences = sequences or made
        world.store_history(sequences)
        same.append(torch.cat(world.step(sequences)))
    assert torch.equal(same[0], same[2])
    assert not torch.equal(same[1], same[2])


@pytest.mark.parametrize("codec", CODECS)
def test_bounds_are_never_below_a_score(backend: str, codec: str) -> None:
    """Of each full block, as it lies in the arena, for queries of all directions and sizes."""
    case = case_of(codec)
    world, [running] = world_of(backend, case, ((200, 200),), (0,))
    world.step([running])
    [placed] = world.layout.blocks[0].fields_of(0, BOUNDS)
    keys = world.as_stored(0, "k", running.rows[0, "k"]).double()
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(50, 1, case.head_dim, generator=generator).double()
    queries *= 10.0 ** torch.randint(-3, 3, queries.shape, generator=generator)
    for block in range(200 // case.block_tokens):
        at = world.layout.block_offset(0, int(world.tables[0][0, block])) + placed.offset
        edges = world.arena[at : at + placed.field.nbytes].view(torch.bfloat16).double()
        least, most = edges.view(placed.field.shape).unbind(1)
        bound = torch.maximum(queries * least, queries * most).sum(-1)
        rows = keys[block * case.block_tokens : (block + 1) * case.block_tokens]
        score = torch.einsum("qxd,thd->qht", queries, rows).amax(-1)
        assert (bound >= score - 1e-9 * score.abs()).all()
        assert (least <= rows.amin(0)).all()
        assert (rows.amin(0) - least <= 2.0**-7 * rows.amin(0).abs() + 1e-30).all()


@pytest.mark.parametrize("codec", ["bf16", "int4 centred"])
def test_what_is_chosen_depends_on_nothing_else(backend: str, codec: str) -> None:
    """Alone and batched, at once and one by one, on one thread and on two: bit for bit, past
    several partial results and pieces of choices."""
    if backend != "native":
        pytest.skip("the reference sums by shape, within a tolerance")
    case = case_of(codec, replace(SPARSE, blocks=70), heads=(3, 1), block_tokens=8)
    context, first = 2400, 2384
    world, [whole] = world_of(backend, case, ((context, context - first),), (0,))
    want = world.step([whole])[0]
    others = [(700, 1), (820, 30), (5, 5)]
    for threads in (1, 2):
        for start, stop in ((first, first + 1), (first + 1, first + 13)):
            piece = {key: rows[:stop] for key, rows in whole.rows.items()}
            part = slice(start - first, stop - first)
            one = Running(stop, stop - start, piece, whole.query[part], whole.sink_query[part])
            lengths = [(stop, stop - start), *others]
            mixed = World(backend, replace(case, threads=threads), lengths, seed=2)
            beside = mixed.sequences(others)
            mixed.store_history([one, *beside])
            mixed.prompts = [0, 0, 810, 5]
            got = mixed.step([one, *beside])[0]
            assert torch.equal(got, want[part]), (threads, start)


def test_equal_promises_are_read_from_the_first(backend: str) -> None:
    """All keys alike: the sinks, the first candidates and the latest."""
    case = case_of("fp32")
    world = World(backend, case, ((160, 1),))
    [running] = world.sequences(((160, 1),))
    for key, rows in running.rows.items():
        if key[1] == "k":
            rows[:] = rows[:1]
    world.store_history([running])
    world.prompts = [0]
    values = running.rows[0, "v"]
    tokens = [t for b in (0, 1, 2, 8, 9) for t in range(16 * b, 16 * b + 16)]
    want = values[tokens].mean(0).repeat_interleave(3, 0)
    torch.testing.assert_close(world.step([running])[0][0], want, atol=1e-5, rtol=0)


def test_a_copied_tail_is_bound_by_what_is_written_over_it(backend: str) -> None:
    """A block whose rows were others', all of them or some: only what it holds when full counts."""
    case = case_of("int8")
    world, [running] = world_of(backend, case, ((160, 1),), (0,))
    want = world.step([running])[0]
    [stale] = world.sequences(((160, 160),))
    for rows in stale.rows.values():
        rows *= 100
    world.step([stale])
    world.prompts = None
    for start, stop in ((0, 37), (37, 38), (38, 150), (150, 159)):
        piece = {key: rows[start:stop] for key, rows in running.rows.items()}
        world.write(world.begin([(start, stop)]), [piece])
    world.prompts = [0]
    assert torch.equal(world.step([running])[0], want)
