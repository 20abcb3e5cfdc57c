"""What the cost model says of small traces that can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdover.codecs.base import uniform
from holdover.errors import ConfigError
from holdover.plan.sizing.device import Device
from holdover.plan.sizing.weights import Weights
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import Subject
from holdover.simulate.reads import Reads
from holdover.simulate.run import Outcome, Setup, simulate
from holdover.simulate.served import Served, filled
from holdover.simulate.trace import Request, Trace
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Residency, Window

NO_READS = StepCosts(1000.0, 0.02, 1e30, ())  # 1,000 prompt tokens a second, 20 ms a step
ARENA_BYTES = 64 << 20


def layout_of(*residencies: Residency) -> CacheLayout:
    layers = tuple(LayerSpec(attention_planes(1, 64), residency) for residency in residencies)
    return CacheLayout.of(CacheSpec.of(layers, 16), uniform("bf16"))


LAYOUT = layout_of(Full())
BYTES_PER_TOKEN = LAYOUT.read_bytes(1024) // 1024


def outcome(costs: StepCosts, *requests: Request, **changes: object) -> Outcome:
    trace = Trace("made", "made", 16, requests, len(requests), False)
    subject = Subject("made", "made", "bf16", LAYOUT, None, None)
    setup = replace(Setup(subject, costs, LinkCosts({}), step_tokens=100), **changes)  # type: ignore[arg-type]
    return simulate(trace, setup, ARENA_BYTES, "", lambda done, total: None)


def request(n_prompt: int, n_output: int, at_s: float = 0.0) -> Request:
    return Request(n_prompt, n_output, np.zeros(0, np.int32), 0, at_s)


def test_one_request() -> None:
    """250 prompt tokens in steps of 100, 100 and 50; then nine more of 20 ms."""
    found = outcome(NO_READS, request(250, 10))
    assert found.ttft_s["p50"] == pytest.approx(0.25)
    assert found.request_s["p50"] == pytest.approx(0.25 + 9 * 0.02)
    assert found.queue_s["p50"] == 0
    assert found.busy_s == pytest.approx(found.span_s)


def test_reading_the_cache_takes_time() -> None:
    """A step of 20 tokens' prompt, then steps over 21, 22, 23 and 24 tokens of cache."""
    found = outcome(StepCosts(1000.0, 0.02, 100.0 * BYTES_PER_TOKEN, ()), request(20, 5))
    assert found.ttft_s["p50"] == pytest.approx(0.02 + 0.20)
    assert found.request_s["p50"] == pytest.approx(5 * 0.02 + (20 + 21 + 22 + 23 + 24) / 100)


def test_who_comes_later_waits_for_the_step_and_for_its_turn() -> None:
    """The second comes in the first one's first step and is let in when its prompt leaves room."""
    found = outcome(NO_READS, request(300, 1), request(100, 1, at_s=0.05))
    assert found.queue_s["p99"] == pytest.approx(0.25, rel=0.02)
    assert found.span_s == pytest.approx(0.4)
    lone = outcome(NO_READS, request(300, 1), request(100, 1, at_s=5.0))
    assert lone.queue_s["p99"] == 0
    assert lone.span_s == pytest.approx(5.1)
    fast = outcome(NO_READS, request(300, 1), request(100, 1, at_s=5.0), speed=10.0)
    assert fast.span_s == pytest.approx(0.6)


def test_who_decodes_goes_on_beside_a_prompt() -> None:
    """Of each step one token is the first one's, so that 99 are left for the second's prompt."""
    found = outcome(NO_READS, request(10, 100), request(990, 1, at_s=0.025))
    assert found.ttft_s["p99"] == pytest.approx(0.015 + 10 * 0.099, rel=0.01)


@pytest.mark.parametrize("residencies", [(Full(),), (Full(), Window(40)), (Window(40),)])
def test_jumps_take_as_long_as_their_steps(residencies: tuple[Residency, ...]) -> None:
    layout = layout_of(*residencies)
    reads, again = Reads(layout), Reads(layout)
    sequences = [Served(i, i, filled(1, 0), 1, 1, 0, 0.0) for i in range(2)]
    twins = [Served(i, i, filled(1, 0), 1, 1, 0, 0.0) for i in range(2)]
    for one, other, n_tokens in zip(sequences, twins, (100, 1000), strict=True):
        reads.set(one, n_tokens, 1)
        again.set(other, n_tokens, 1)
    at_once_s = reads.steps_s(50, 0.01, 1e6)
    total_s = 0.0
    for _ in range(50):
        total_s += again.steps_s(1, 0.01, 1e6)
        again.advance(1)
    assert at_once_s == pytest.approx(total_s)
    for n in (1, 2, 17, 50):
        assert reads.steps_until(reads.steps_s(n, 0.01, 1e6), 50, 0.01, 1e6) == n
    exact = sum(layout.read_bytes(100 + i) + layout.read_bytes(1000 + i) for i in range(50))
    assert total_s - 0.5 == pytest.approx(exact / 1e6)
    for one in sequences:
        reads.remove(one)
    assert reads.bytes == pytest.approx(0, abs=1e-3)


def test_costs_of_a_device() -> None:
    device = Device("card", 80 << 30, 2_000_000_000_000)
    weights = Weights(16_000_000_000, "bf16", "file", 8_000_000_000, 16_000_000_000)
    costs = StepCosts.of(device, weights, None, None)
    assert costs.decode_s == pytest.approx(16e9 / 1.4e12)
    assert costs.prefill_tokens_per_s == pytest.approx(2e12 * 75 / 16e9)
    sparse = replace(weights, active_bytes=4_000_000_000)
    assert StepCosts.of(device, sparse, None, None).prefill_tokens_per_s == pytest.approx(
        4 * costs.prefill_tokens_per_s
    )
    given = StepCosts.of(device, None, 500.0, 7.0)
    assert (given.prefill_tokens_per_s, given.decode_s) == (500.0, 0.007)
    with pytest.raises(ConfigError, match="--decode-ms: must be given"):
        StepCosts.of(device, None, 500.0, None)
    with pytest.raises(ConfigError, match="--prefill-tokens-per-s: must be given"):
        StepCosts.of(device, None, None, 7.0)
    with pytest.raises(ConfigError, match="--disk-bandwidth: moves nothing"):
        LinkCosts.of(None, 0)
