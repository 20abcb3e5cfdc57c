"""The promises of the cache and the engine on SmolLM2 and Gemma 3 (window of 512).

Computed by torch in fp32, and by the native decoder with 16 bit weights.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdover.codecs.base import uniform
from holdover.engine.api import SamplingParams
from holdover.kernels._selection import AUTO, asked_backend
from holdover.kernels.native.availability import extension
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.units import ceil_div

from .conftest import GREEDY, Loaded, Serve

BLOCK_TOKENS = 8
SHARED = "The following is a conversation between a curious student and a patient librarian. "
QUESTIONS = [
    "Student: What is the capital of France?\nLibrarian:",
    "Student: How many legs does a spider have?\nLibrarian:",
    "Student: Who wrote Hamlet?\nLibrarian:",
]
PROMPTS = [question + " " + SHARED * i for i, question in enumerate(QUESTIONS)]
LONG = {"llama": SHARED * 8, "gemma3_text": SHARED * 38}  # past Gemma's window of 512


@pytest.fixture(params=["smollm2", "gemma3"])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    found: Loaded = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> dict[str, str]:
    """What `serve` is told."""
    if request.param == "torch":
        return {}
    if asked_backend(AUTO) == "reference" or extension() is None:
        pytest.skip("the native decoder works on the native kernels")
    return {"native_weights": "bf16"}


@pytest.fixture(autouse=True)
def _two_threads(_one_thread: None) -> None:
    torch.set_num_threads(2)  # set back by the fixture that this one builds on


def layout_of(loaded: Loaded) -> CacheLayout:
    spec = CacheSpec.of(loaded.model.geometry.layers, BLOCK_TOKENS)
    return CacheLayout.of(spec, uniform("fp32"))


def test_batched_parked_and_hit_equal_alone(
    loaded: Loaded, serve: Serve, decoder: dict[str, str]
) -> None:
    params = replace(GREEDY, max_tokens=12, ignore_eos=True)
    roomy = serve(loaded, 64 << 20, block_tokens=BLOCK_TOKENS, max_context_tokens=256, **decoder)
    alone = roomy.alone(PROMPTS, params)
    batched = roomy.together(PROMPTS, params)
    hit = roomy.ask(PROMPTS[1], params).answer()
    # Room for all of them to begin, and not for all of them to end.
    lengths = [len(loaded.tokenizer.encode(prompt)) for prompt in PROMPTS]
    layout = layout_of(loaded)
    n_blocks = sum(ceil_div(length + BLOCK_TOKENS, BLOCK_TOKENS) for length in lengths)
    n_sectors = layout.sectors_for([n_blocks] * len(layout.blocks))
    tight_bytes = n_sectors * layout.sector_bytes
    tight = serve(loaded, tight_bytes, block_tokens=BLOCK_TOKENS, max_context_tokens=64, **decoder)
    parked = tight.together(PROMPTS, params)
    assert tight.engine.stats().parked_total > 0
    assert hit.cached_tokens == lengths[1] - 1
    assert hit.tokens == alone[1].tokens
    for found in (batched, parked):
        assert [a.tokens for a in found] == [a.tokens for a in alone]
        assert [a.text for a in found] == [a.text for a in alone]


def test_sampled_cold_equals_sampled_warm(
    smollm2: Loaded, serve: Serve, decoder: dict[str, str]
) -> None:
    """A hit computes one row where the cold run computed all: its logits differ in the last bits,
    and a seed must give the same answer all the same."""
    served = serve(smollm2, 64 << 20, block_tokens=BLOCK_TOKENS, max_context_tokens=256, **decoder)
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True)
    prompts = [f"{SHARED * (i % 3)}{QUESTIONS[i % 3]} ({i})" for i in range(8)]
    cold = served.together(prompts, params)
    warm = served.together(prompts, params)
    assert [a.tokens for a in warm] == [a.tokens for a in cold]
    assert all(w.cached_tokens > c.cached_tokens for w, c in zip(warm, cold, strict=True))
    alone = [served.ask(prompt, params, tenant="alone").answer().tokens for prompt in prompts[:2]]
    assert alone == [a.tokens for a in cold[:2]]


def test_turn_two_hits_past_the_window(
    loaded: Loaded, serve: Serve, decoder: dict[str, str]
) -> None:
    params = replace(GREEDY, max_tokens=6, ignore_eos=True)
    served = serve(
        loaded, 96 << 20, step_tokens=256, block_tokens=16, max_context_tokens=900, **decoder
    )
    kind = loaded.checkpoint.config["model_type"]
    ids = tuple(loaded.tokenizer.encode(LONG[kind]))
    assert len(ids) > 520 or kind == "llama"
    first = served.ask(ids, params).answer()
    turn_two = (*ids, *first.tokens, *loaded.tokenizer.encode(" And then?"))
    warm = served.ask(turn_two, params).answer()
    cold = served.ask(turn_two, params, tenant="cold").answer()
    assert warm.cached_tokens == len(ids) + 6 - 1
    assert cold.cached_tokens == 0
    assert warm.tokens == cold.tokens


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_64_chats_in_64_mib(loaded: Loaded, serve: Serve, decoder: dict[str, str]) -> None:
    """Every one finishes with the text it gives alone; afterwards no block is held."""
    prompts = [SHARED * (i % 5) + f"({i}) " + QUESTIONS[i % 3] for i in range(64)]
    params = replace(GREEDY, max_tokens=24)
    alone = serve(loaded, 64 << 20, block_tokens=16, step_tokens=128, **decoder).alone(
        prompts, params
    )
    tight = serve(loaded, 64 << 20, block_tokens=16, max_sequences=64, step_tokens=256, **decoder)
    together = tight.together(prompts, params)
    assert [a.text for a in together] == [a.text for a in alone]
    assert {a.reason for a in together} <= {"stop", "length"}
    tight.assert_nothing_held()
