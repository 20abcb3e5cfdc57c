"""The simulation against the engine that it stands for: equal hits, request by request.

A tiny random model computes what the simulation only counts. Answers are forced to one token that
no prompt has, since what a real answer says is not in any trace.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdover.cache.tiers._open import parse_tiers
from holdover.engine.api import SamplingParams
from holdover.errors import RequestError
from holdover.plan.sizing.question import Question
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import read_subject
from holdover.simulate.run import Outcome, Setup, simulate
from holdover.simulate.served import prompt_tokens
from holdover.simulate.trace import Request, Trace

from .conftest import Loaded, Reply, Serve, Served

BLOCK_TOKENS = 8
ANSWER = 255  # ids of blocks are below it
AT_ONCE = 1e-9


def made_trace(seed: int, n: int, in_turn: bool) -> Trace:
    """Conversations that grow, some of which begin alike; the last block is partly filled."""
    choose = random.Random(seed)
    histories: list[list[int]] = [[1, 2, 3]]
    requests = []
    for index in range(n):
        history = list(choose.choice(histories))
        if choose.random() < 0.3:
            history = history[: choose.randrange(1, len(history) + 1)]
        history += [choose.randrange(4, 120) for _ in range(choose.randrange(1, 5))]
        history.append(120 + index % 130)  # no two prompts are equal
        histories.append(history)
        n_prompt = len(history) * BLOCK_TOKENS - choose.randrange(BLOCK_TOKENS)
        after = ((index - 1, 0.0),) if in_turn and index else ()
        at_s = AT_ONCE if index else 0.0
        blocks = np.array(history, np.int32)
        requests.append(Request(n_prompt, choose.randrange(1, 40), blocks, index, at_s, after))
    return Trace("made", "made", BLOCK_TOKENS, tuple(requests), n, False)


def simulated(tiny: Loaded, trace: Trace, arena_bytes: int, **changes: Any) -> Outcome:
    subject = read_subject(str(tiny.checkpoint.path), Question(), "fp32", BLOCK_TOKENS)
    costs = StepCosts(1000.0, 0.01, 1e9, ())
    setup = Setup(subject, costs, LinkCosts({"ram": 25e9}), max_sequences=16, step_tokens=64)
    return simulate(trace, replace(setup, **changes), arena_bytes, "", lambda done, total: None)


def ask(served: Served, request: Request) -> Reply | None:
    """None for what can never fit."""
    tokens = prompt_tokens(request, BLOCK_TOKENS, -1)
    assert tokens.min() >= 0
    params = SamplingParams(
        temperature=0, max_tokens=request.output_tokens, ignore_eos=True,
        logit_bias=((ANSWER, 100.0),),
    )  # fmt: skip
    try:
        return served.ask(tuple(tokens.tolist()), params)
    except RequestError:
        return None


def cached(reply: Reply | None) -> int | None:
    return None if reply is None else reply.answer().cached_tokens


@pytest.mark.parametrize("arena_bytes", [96 << 10, 192 << 10, 8 << 20])
def test_one_after_the_other_as_the_engine(tiny: Loaded, serve: Serve, arena_bytes: int) -> None:
    trace = made_trace(1, 40, in_turn=True)
    served = serve(tiny, arena_bytes)
    found = [cached(ask(served, request)) for request in trace.requests]
    expected = simulated(tiny, trace, arena_bytes)
    assert list(expected.cached_tokens) == found
    assert expected.evicted_blocks == served.engine.stats().evicted_blocks
    assert 0 < expected.hit_rate < 1
    assert (expected.evicted_blocks > 0) == (arena_bytes < 1 << 20)


def test_a_ram_tier_as_the_engine(tiny: Loaded, serve: Serve) -> None:
    """It holds all that the arena has no room for, and every load pays."""
    trace = made_trace(6, 40, in_turn=True)
    served = serve(tiny, 128 << 10, tiers=["ram:16MiB"])
    found = [cached(ask(served, request)) for request in trace.requests]
    ram = parse_tiers(["ram:16MiB"])
    expected = simulated(tiny, trace, 128 << 10, tiers=ram)
    assert list(expected.cached_tokens) == found
    assert expected.tiers["ram"].hit_tokens > 0
    assert expected.hit_rate > simulated(tiny, trace, 128 << 10).hit_rate


@pytest.mark.parametrize(
    ("seed", "arena_bytes", "max_sequences", "step_tokens"),
    [
        (2, 128 << 10, 16, 64),
        (3, 160 << 10, 16, 64),
        (4, 256 << 10, 4, 64),
        (5, 8 << 20, 16, 64),
        (6, 512 << 10, 16, 256),
    ],
)
def test_all_at_once_as_the_engine(
    tiny: Loaded, serve: Serve, seed: int, arena_bytes: int, max_sequences: int, step_tokens: int
) -> None:
    """Many run at a time, are parked and come back: every step is the engine's."""
    trace = made_trace(seed, 40, in_turn=False)
    limits = {"max_sequences": max_sequences, "step_tokens": step_tokens}
    served = serve(tiny, arena_bytes, **limits)
    served.gate.hold()
    replies = [ask(served, trace.requests[0])]
    assert served.gate.arrived.wait(60), "the first is alone in the first step"
    replies += [ask(served, request) for request in trace.requests[1:]]
    served.gate.open.set()
    found = [cached(reply) for reply in replies]
    expected = simulated(tiny, trace, arena_bytes, **limits)
    stats = served.engine.stats()
    assert list(expected.cached_tokens) == found
    assert (expected.evicted_blocks, expected.parked) == (stats.evicted_blocks, stats.parked_total)
    print(
        expected.parked,
        expected.evicted_blocks,
        expected.refused,
        expected.hit_rate,
        expected.most_running,
    )
    assert expected.most_running <= max_sequences
