"""Engines with an imposed window: conversations far beyond the model's context, in fixed bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdover.config import Config
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.kernels.native.availability import extension

from .conftest import GREEDY, Loaded, Reply, Serve

WINDOW, SINKS = 40, 3
LONG = 1500  # tokens; the tiny model was made for 1,024
PARAMS = replace(GREEDY, max_tokens=6, ignore_eos=True)
PROMPT = tuple(i * 7 % 251 for i in range(LONG))


def imposed(loaded: Loaded) -> Loaded:
    geometry = with_window(loaded.model.geometry, ImposedWindow(WINDOW, SINKS))
    model = replace(loaded.model, geometry=geometry)  # type: ignore[type-var]
    return Loaded(loaded.checkpoint, model, loaded.tokenizer)


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "native" and extension() is None:
        pytest.skip("nothing was compiled")
    return {"native_weights": "fp32", "backend": "native"} if request.param == "native" else {}


def test_it_goes_on_in_fixed_bytes_and_says_what_is_forgotten(
    tiny: Loaded, serve: Serve, decoder: dict[str, str]
) -> None:
    loaded, options = imposed(tiny), {"max_context_tokens": 4000, "block_tokens": 8, **decoder}
    served = serve(loaded, 2 << 20, **options)
    first = served.ask(PROMPT, PARAMS).answer()
    assert first.usage.forgotten_tokens == LONG + 6 - (WINDOW + SINKS - 1)
    assert served.ask(PROMPT[:20], PARAMS).answer().usage.forgotten_tokens == 0

    # The middle, which no query sees any more, is the first to go.
    assert served.engine._between_steps(lambda: served.manager.evict(170)).result() == 170
    history = (*PROMPT, *first.tokens, 1, 2, 3)
    warm = served.ask(history, PARAMS).answer()
    cold = served.ask(history, PARAMS, tenant="cold").answer()
    assert (warm.cached_tokens, cold.cached_tokens) == (len(PROMPT) + 6 - 1, 0)
    assert warm.tokens == cold.tokens
    again = served.ask(history, PARAMS).answer()
    assert (again.tokens, served.engine.stats().kept_prompt_ends) == (cold.tokens, 1)


def test_the_smallest_arena_that_holds_the_window_holds_any_length(
    tiny: Loaded, serve: Serve
) -> None:
    loaded = imposed(tiny)
    roomy = serve(loaded, 2 << 20, max_context_tokens=4000, step_tokens=16)
    layout = roomy.manager.layout
    least = layout.held_bytes(layout.peak_blocks(4000, 16))
    tight = serve(loaded, least, max_context_tokens=4000, step_tokens=16)
    assert tight.engine.limits.max_context_tokens == 4000
    found, expected = (s.ask(PROMPT, PARAMS).answer() for s in (tight, roomy))
    assert found.tokens == expected.tokens
    # Evicted all along: what the next turn reads is the last to go. There is no room for a copy of
    # the last block, which is partly filled.
    again = tight.ask((*PROMPT, *found.tokens), PARAMS).answer()
    assert again.cached_tokens == (LONG + 6 - 1) // 8 * 8


def test_a_plan_with_a_window_becomes_an_engine_of_its_size(tiny: Loaded) -> None:
    config = Config(
        model=str(Path(tiny.checkpoint.path)), kv_memory="1MiB", threads=1, step_tokens=64,
        kv="int4", window=64, sinks=2, max_context=3000,
    )  # fmt: skip
    planned = plan_serving(config)
    other = plan_serving(replace(config, window=None, sinks=None, max_context=1024))
    engine = build_engine(planned)
    reply = Reply()
    engine.submit(PROMPT, PARAMS, reply.events.put)
    usage = reply.answer().usage
    engine.shutdown(0)
    assert usage.forgotten_tokens == LONG + 6 - 65
    assert engine.stats().allocated_bytes == planned.plan.arena_bytes
    # longer centres and tables; a second query beside the first
    assert planned.plan.parts.centres_bytes > other.plan.parts.centres_bytes
    assert planned.plan.parts.activations_bytes > other.plan.parts.activations_bytes
    assert planned.layout.fingerprint != other.layout.fingerprint
