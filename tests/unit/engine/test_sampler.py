"""The sampler against a plain numpy version, in distribution, alone and batched, and in bytes."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdover.engine.api import SamplingParams
from holdover.engine.counts import TokenCounts
from holdover.engine.noise import add_noise, noise_key
from holdover.engine.sampler import SampleRow, has_penalty, sample, sampler_bytes
from holdover.spec.limits import Limits

Params = SamplingParams
GREEDY = Params(temperature=0)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * scale


def plain_noise(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The hash with unsigned arithmetic, the rest in fp64."""
    mask = 0xFFFFFFFF
    text = struct.pack("<QQ", seed % 2**64, position)
    first, second = struct.unpack("<II", hashlib.blake2b(text, digest_size=8).digest())
    x = tokens.astype(np.uint64) ^ first
    for shift, factor, more in ((16, 0x7FEB352D, second), (15, 0x2C1B3C6D, 0), (15, 0x297A2D39, 0)):
        x = ((x ^ (x >> shift)) * factor & mask) + more & mask
    x ^= x >> 14
    uniform = ((x & 0x7FFFFFFF) + 0.5) / 2**31
    return -np.log(-np.log1p(-uniform))


def probabilities(
    logits: NDArray[np.float64], params: Params, prompt: list[int], answer: list[int]
) -> NDArray[np.float64]:
    """The distribution a token is drawn from, step by step as the documentation of it reads."""
    scores = logits.astype(np.float64).copy()
    for token, bias in params.logit_bias:
        scores[token] += bias
    for token in set(prompt + answer):
        if scores[token] > 0:
            scores[token] /= params.repetition_penalty
        else:
            scores[token] *= params.repetition_penalty
    for token in set(answer):
        scores[token] -= params.presence_penalty
        scores[token] -= params.frequency_penalty * answer.count(token)
    if params.temperature == 0:
        return (np.arange(len(scores)) == scores.argmax()).astype(np.float64)
    p = np.exp((scores - scores.max()) / params.temperature)
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    before = 0.0
    for token in order:
        mass = p[token]
        if before >= params.top_p:
            p[token] = 0
        before += mass
    return p / p.sum()


def row_of(params: Params, seed: int, prompt: list[int], answer: list[int]) -> SampleRow:
    counts = None
    if has_penalty(params):
        counts = TokenCounts(prompt)
        for token in answer:
            counts.add(token)
    return SampleRow(params, seed, len(prompt) + len(answer), counts)


params_strategy = st.builds(
    Params,
    temperature=st.sampled_from([0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 40, 80, 5000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((3, 5.0), (7, -100.0)), ((3, 1.0), (3, 1.5))]),
)


@settings(max_examples=80, deadline=None)
@given(params=params_strategy, seed=st.integers(-(2**63), 2**63), vocab=st.sampled_from([50, 1500]))
def test_every_token_is_the_one_that_the_plain_version_draws(
    params: Params, seed: int, vocab: int
) -> None:
    """The largest sum of log probability and noise, up to rounding at a near tie or at a cut."""
    rng = np.random.default_rng(abs(seed))
    prompt = rng.integers(0, 50, 12).tolist()
    answer = rng.integers(0, 50, 6).tolist()
    logits = random_logits(1, vocab, abs(seed))
    expected = probabilities(logits[0].double().numpy(), params, prompt, answer)
    n = 64
    rows = [row_of(params, seed + i, prompt, answer) for i in range(n)]
    tokens = np.array([s.token_id for s in sample(logits.expand(n, -1), rows)])
    assert np.all(expected[tokens] > 0), "drew a token that was cut"
    with np.errstate(divide="ignore"):
        scores = np.log(expected)
    wrong = 0
    for token, row in zip(tokens, rows, strict=True):
        sums = scores + plain_noise(row.seed, row.position, np.arange(vocab))
        wrong += sums[token] < sums.max() - 1e-4
    assert wrong == 0 or (wrong <= 1 and params.top_p < 1)


def test_a_small_change_of_the_logits_seldom_changes_a_draw() -> None:
    """What a reused prefix or another batch changes. By inverse distribution, in the order of the
    vocabulary, the same change moved two of five draws."""
    logits = random_logits(1, 49_152, 3, scale=1.0)
    shifted = logits.clone()
    shifted[:, : 49_152 // 2] += 1e-4
    rows = [SampleRow(Params(), seed, 7) for seed in range(1000)]
    changed = 0
    for start in range(0, len(rows), 100):
        some = rows[start : start + 100]
        before = sample(logits.expand(len(some), -1), some)
        changed += sum(
            a != b for a, b in zip(before, sample(shifted.expand(100, -1), some), strict=True)
        )
    assert changed <= 2


def test_noise_is_its_own_for_each_seed_position_and_token() -> None:
    """Means, variances (Gumbel: 0.5772 and 1.645) and correlations of neighbours in each."""
    ids = torch.arange(4096, dtype=torch.int32)[None]
    keys = [noise_key(seed, position) for seed in range(24) for position in range(24)]
    noise = add_noise(torch.zeros(len(keys), 4096), ids, keys).double().numpy()
    assert abs(noise.mean() - 0.57722) < 0.005
    assert abs(noise.var() - math.pi**2 / 6) < 0.02
    grid = (noise - noise.mean()).reshape(24, 24, 4096)
    for axis in range(3):
        left, right = np.delete(grid, 0, axis), np.delete(grid, -1, axis)
        assert abs((left * right).mean()) < 0.01
    assert len(np.unique(noise[:, 0])) == len(keys)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(params_strategy, min_size=2, max_size=9), seed=st.integers(0, 1000))
def test_alone_equals_batched(rows: list[Params], seed: int) -> None:
    """Ties included: the logits are rounded so that many are equal."""
    logits = random_logits(len(rows), 3000, seed).mul(4).round().div(4)
    made = [
        replace(row_of(p, seed, [1, 2, 3], [3, 3, 5]), params=replace(p, logprobs=i % 4))
        for i, p in enumerate(rows)
    ]
    batched = sample(logits, made)
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(made)]
    assert [s.token_id for s in batched] == [s.token_id for s in alone]
    for a, b in zip(batched, alone, strict=True):
        assert a.logprob is not None
        assert b.logprob is not None
        assert [t for t, _ in a.logprob.top] == [t for t, _ in b.logprob.top]
        assert a.logprob.logprob == pytest.approx(b.logprob.logprob, abs=1e-5)


def test_greedy_takes_the_first_of_equal_logits_and_leaves_them_alone() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, -1.0, 5.0, 5.0]])
    before = logits.clone()
    penalised = row_of(Params(temperature=0, presence_penalty=2), 0, [], [0])
    assert [s.token_id for s in sample(logits, [SampleRow(GREEDY), SampleRow(GREEDY)])] == [1, 0]
    assert [s.token_id for s in sample(logits, [SampleRow(GREEDY), penalised])] == [1, 2]
    assert torch.equal(logits, before)


def test_logprobs_are_of_the_untouched_distribution() -> None:
    logits = random_logits(3, 200, 3)
    expected = torch.log_softmax(logits.double(), -1)
    params = Params(temperature=0.2, top_k=2, logit_bias=((7, 100.0),), logprobs=5)
    rows = [SampleRow(params), SampleRow(GREEDY), SampleRow(replace(params, logprobs=0))]
    first, greedy, last = sample(logits, rows)
    assert first.token_id == 7
    assert greedy.logprob is None
    assert first.logprob is not None
    assert last.logprob is not None
    assert first.logprob.logprob == pytest.approx(float(expected[0, 7]), abs=1e-5)
    order = expected[0].argsort(descending=True)[:5].tolist()
    assert [token for token, _ in first.logprob.top] == order
    assert [lp for _, lp in first.logprob.top] == pytest.approx(
        expected[0][order].tolist(), abs=1e-5
    )
    assert last.logprob.top == ()


@pytest.mark.parametrize(
    "params", [Params(), Params(top_p=0.99999), Params(top_k=64), Params(min_p=1e-9)]
)
def test_no_noise_makes_up_for_no_probability(params: Params) -> None:
    logits = torch.full((500, 70_000), -1e4)
    logits[:, 10:20] = 0.0
    drawn = {s.token_id for s in sample(logits, [SampleRow(params, i) for i in range(500)])}
    assert drawn == set(range(10, 20))


def test_extreme_temperatures() -> None:
    logits = random_logits(1, 1000, 9)
    cold, hot = Params(temperature=1e-6), Params(temperature=100, top_p=0.5)
    assert sample(logits, [SampleRow(cold, 999)])[0].token_id == int(logits.argmax())
    assert 0 <= sample(logits, [SampleRow(hot, 999)])[0].token_id < 1000


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parameters_too_small_for_fp32(seed: int) -> None:
    """1e-46 is 0 in fp32: scores became NaN, and the last token of the vocabulary was drawn."""
    logits = random_logits(1, 1000, 9)
    for params in (Params(temperature=1e-46), Params(temperature=1e-320), Params(top_p=1e-46)):
        (drawn,) = sample(logits, [SampleRow(params, seed)])
        assert drawn is not None
        assert drawn.token_id == int(logits.argmax())


@pytest.mark.parametrize(
    "damage", [{3: math.nan}, {3: math.inf}, dict.fromkeys(range(10), -math.inf)]
)
@pytest.mark.parametrize("params", [GREEDY, Params(), Params(top_k=4), Params(logprobs=2)])
def test_damaged_logits_get_no_token_and_harm_no_other_row(
    damage: dict[int, float], params: Params
) -> None:
    logits = random_logits(3, 10)
    rows = [SampleRow(params)] * 3
    sound = sample(logits, rows)
    for token, value in damage.items():
        logits[1, token] = value
    assert sample(logits, rows) == [sound[0], None, sound[2]]


def test_a_token_that_is_ruled_out_is_no_damage() -> None:
    logits = random_logits(1, 10)
    logits[0, 1:] = -math.inf
    for params in (GREEDY, Params(logprobs=2), Params(top_k=4)):
        (drawn,) = sample(logits, [SampleRow(params, 99)])
        assert drawn is not None
        assert drawn.token_id == 0


def peak_scratch_bytes(work: Callable[[], object]) -> int:
    """Most bytes that torch held at once for `work`, by its own allocation records."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize("vocab", [1000, 49_152, 262_144])
def test_scratch_stays_within_the_stated_bound(vocab: int) -> None:
    limits = Limits(max_sequences=6, step_tokens=6, max_context_tokens=100)
    logits = random_logits(6, vocab, scale=0.01)  # flat: top_p needs the whole vocabulary sorted
    heavy = Params(top_p=0.999, min_p=0.001, logprobs=20, repetition_penalty=1.1)
    rows = [row_of(heavy, 5, list(range(vocab)), [1]) for _ in range(6)]
    peak = peak_scratch_bytes(lambda: sample(logits, rows))
    # The sort's own copy does not pass torch's allocator: 16 bytes of the bound are for it.
    assert vocab * 4 < peak <= sampler_bytes(limits, vocab) * 32 / 48
    plain = peak_scratch_bytes(lambda: sample(logits, [SampleRow(GREEDY)] * 6))
    assert plain < 4096, "greedy rows pay for nothing else"
