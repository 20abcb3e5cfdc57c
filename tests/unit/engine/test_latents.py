"""A model that caches latents: reuse, batching and parking, as with keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.config import Config
from holdover.engine.api import SamplingParams
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving
from holdover.errors import ConfigError

from .conftest import GREEDY, Loaded, Serve

PROMPTS = ["Once there was", "a cache " * 12, "The sea is wide, " * 5, "x"]
LONG = replace(GREEDY, ignore_eos=True)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4", "latent=int4,rope=bf16"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_hit_equals_a_cold_run(latents: Loaded, serve: Serve, backend: str, codec: str) -> None:
    served = serve(latents, backend=backend, codec=codec, step_tokens=16)
    served.assert_hits_equal_cold(PROMPTS, LONG)


def test_parked_equals_undisturbed(latents: Loaded, serve: Serve) -> None:
    params = SamplingParams(max_tokens=70, seed=11, temperature=0.9, ignore_eos=True)
    prompts = [f"{i} {prompt}" for i in range(3) for prompt in PROMPTS]
    expected = serve(latents).alone(prompts, params)
    tight = serve(latents, 72 << 10, max_context_tokens=200)
    found = tight.together(prompts, params)
    assert tight.engine.stats().parked_total > 0
    assert [a.tokens for a in found] == [a.tokens for a in expected]


@pytest.mark.parametrize("kv", ["bf16", "int4", "latent=int8,rope=bf16", "latent@1=int4"])
def test_what_is_planned_is_allocated(latents: Loaded, kv: str) -> None:
    """`build_engine` compares each part; the layout has the codec of each plane."""
    config = Config(model=str(latents.checkpoint.path), kv=kv, kv_memory="1MiB", threads=1)
    planned = plan_serving(config)
    assert {plane.name for plane in planned.layout.spec.groups[0].planes} == {"latent", "rope"}
    if kv == "latent@1=int4":
        stored = {(p.layer, p.plane): p.codec for p in planned.layout.blocks[0].fields}
        assert [layer for (layer, _), codec in stored.items() if codec == "int4"] == [1]
    engine = build_engine(planned)
    engine.shutdown(0)
    assert engine.stats().allocated_bytes == planned.plan.arena_bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv": "v=int4"}, "names v; this model stores latent and rope"),
        ({"weights": "int8"}, "keys and values, not latents; use --weights"),
    ],
)
def test_what_latents_have_not_is_refused(
    latents: Loaded, changes: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_serving(Config(model=str(latents.checkpoint.path), kv_memory="1MiB", **changes))  # type: ignore[arg-type]


def test_planes_of_latents_are_refused_elsewhere(tiny: Loaded) -> None:
    config = Config(model=str(tiny.checkpoint.path), kv="rope=int8", kv_memory="1MiB")
    with pytest.raises(ConfigError, match="names rope; this model stores k and v"):
        plan_serving(config)
