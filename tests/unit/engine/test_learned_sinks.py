"""gpt-oss: learned sinks, windows in every other layer and experts, through the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.config import Config
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving
from holdover.errors import ConfigError

from .conftest import GREEDY, Loaded, Serve

PROMPTS = ["Once there was", "a cache " * 12, "The sea is wide, " * 5]
LONG = replace(GREEDY, ignore_eos=True)


@pytest.mark.parametrize(("backend", "codec"), [("native", "int8"), ("reference", "fp32")])
def test_a_hit_equals_a_cold_run(oss: Loaded, serve: Serve, backend: str, codec: str) -> None:
    served = serve(oss, backend=backend, codec=codec, step_tokens=16)
    served.assert_hits_equal_cold(PROMPTS, LONG)


def test_what_is_planned_is_allocated(oss: Loaded) -> None:
    """`build_engine` compares each part; with a window imposed on the layers that have none."""
    config = Config(model=str(oss.checkpoint.path), kv_memory="1MiB", threads=1, window=40, sinks=4)
    planned = plan_serving(config)
    assert planned.plan.subject.decoder == "torch"
    kept = [
        (g.residency.window_tokens, g.residency.sink_tokens) for g in planned.layout.spec.groups
    ]  # type: ignore[union-attr]
    assert sorted(kept) == [(24, 0), (40, 4)]
    engine = build_engine(planned)
    engine.shutdown(0)
    assert engine.stats().allocated_bytes == planned.plan.arena_bytes


def test_weights_of_the_native_decoder_are_refused(oss: Loaded) -> None:
    config = Config(model=str(oss.checkpoint.path), kv_memory="1MiB", weights="int8")
    with pytest.raises(ConfigError, match="one MLP a layer, not experts; use --weights"):
        plan_serving(config)
