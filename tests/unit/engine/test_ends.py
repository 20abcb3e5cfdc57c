"""The same prompt again: its first token without a prefill, every answer as it is with one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.engine.api import SamplingParams, TokenLogprob
from holdover.kernels.native.availability import extension

from .conftest import GREEDY, Answer, Loaded, Serve

TEXT = "What is a cache, and what does it keep of a prompt that has ended?"
PROMPTS = [tuple(TEXT.encode()[:n]) for n in (40, 47, 33, 1)]  # in blocks of 8: tails of 0, 7, 1
SHOWN = replace(GREEDY, logprobs=3, ignore_eos=True)
DRAWN = SamplingParams(
    max_tokens=6, seed=5, temperature=0.8, top_p=0.9, repetition_penalty=1.2,
    logit_bias=((65, 2.0),), logprobs=2, ignore_eos=True,
)  # fmt: skip


def told(answers: list[Answer]) -> list[tuple[str, list[int], list[TokenLogprob]]]:
    """All that a client is told, bits of logprobs included."""
    return [(answer.text, answer.tokens, answer.logprobs) for answer in answers]


@pytest.mark.skipif(extension() is None, reason="the native kernels are not built")
@pytest.mark.parametrize(
    ("codec", "weights"), [("bf16", "bf16"), ("int8", "bf16"), ("int4", "int8"), ("fp32", "fp32")]
)
def test_answers_are_bit_for_bit_those_without(
    tiny: Loaded, serve: Serve, codec: str, weights: str
) -> None:
    """One by one and batched with a prompt that is new, sampled and greedy."""
    native = {"native_weights": weights, "backend": "native"}
    engines = [serve(tiny, codec=codec, prompt_ends=n, **native) for n in (8, 0)]
    for params, text in ((SHOWN, "greedy"), (DRAWN, "drawn")):
        new = tuple(f"{text} and new".encode())
        found = []
        for served in engines:
            cold = [served.ask(prompt, params).answer() for prompt in PROMPTS]
            again = [served.ask(prompt, params).answer() for prompt in PROMPTS]
            served.gate.hold()
            replies = [served.ask(prompt, params) for prompt in (*PROMPTS, new, *PROMPTS)]
            served.gate.open.set()
            batched = [reply.answer() for reply in replies]
            assert told(again) == told(cold)
            assert told([*batched[:4], *batched[5:]]) == told([*cold, *cold])
            found.append(told([*cold, *again, *batched]))
            assert [a.cached_tokens for a in again] == [len(prompt) - 1 for prompt in PROMPTS]
        assert found[0] == found[1]
    assert [served.engine.stats().kept_prompt_ends for served in engines] == [24 + 4, 0]


def test_answers_with_siblings_need_one_step_for_their_first_tokens(
    tiny: Loaded, serve: Serve
) -> None:
    served, plain = serve(tiny), serve(tiny, prompt_ends=0)
    params = SamplingParams(max_tokens=5, seed=40, ignore_eos=True)
    found, expected = (s.ask(PROMPTS[1], params, n=3).answers() for s in (served, plain))
    assert [a.tokens for a in found] == [a.tokens for a in expected]
    assert served.engine.stats().kept_prompt_ends == 2


def test_a_prompt_whose_blocks_went_is_computed(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    cold = served.ask(PROMPTS[1], SHOWN).answer()
    assert served.engine._between_steps(lambda: served.manager.evict(4)).result() == 4
    again = served.ask(PROMPTS[1], SHOWN).answer()
    assert 0 < again.cached_tokens < 40
    assert again.tokens == cold.tokens
    assert served.engine.stats().kept_prompt_ends == 0
    last = served.ask(PROMPTS[1], SHOWN).answer()
    assert (last.tokens, served.engine.stats().kept_prompt_ends) == (cold.tokens, 1)


def test_what_goes_on_from_an_end_can_be_parked(tiny: Loaded, serve: Serve) -> None:
    params = replace(GREEDY, max_tokens=90, ignore_eos=True)
    expected = serve(tiny, prompt_ends=0).alone([TEXT], params)[0]
    tight = serve(tiny, 160 << 10, max_context_tokens=200)
    tight.ask(TEXT, replace(params, max_tokens=1)).answer()
    found = tight.together([TEXT] * 4, params)
    stats = tight.engine.stats()
    assert (stats.parked_total > 0, stats.kept_prompt_ends) == (True, 4)
    assert [a.tokens for a in found] == [expected.tokens] * 4


def test_a_forgotten_conversation_leaves_no_end(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    answer = served.ask(PROMPTS[1], tenant="a").answer()
    served.ask((*PROMPTS[2], 7), tenant="a").answer()  # another one
    served.ask(PROMPTS[1], tenant="b").answer()
    assert len(served.manager.ends) == 3
    served.engine.forget((*PROMPTS[1], *answer.tokens), "a").result()
    assert len(served.manager.ends) == 2
    assert served.engine.stats().kept_prompt_ends == 0, "tenants share none"
    served.ask(PROMPTS[1], tenant="b").answer()
    assert served.engine.stats().kept_prompt_ends == 1
