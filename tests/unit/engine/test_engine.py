"""The engine over a tiny random Llama: exact answers, sharing, pressure, failures, shutdown."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdover.engine.api import NOT_FINITE, QUEUE_FULL, Event, SamplingParams
from holdover.errors import RequestError
from holdover.kernels.base import AttentionBatch

from .conftest import GREEDY, Loaded, Reply, Serve, Served

PROMPTS = [
    "The quick brown fox jumps over the lazy dog",
    "a",
    "What is a cache? " * 9,
    "What is a cache? " * 9 + "And a block?",
    "0123456789" * 14,
    "Tell me about the sea, in one line.",
]


def greedy_tokens(loaded: Loaded, prompt: str, n: int) -> list[int]:
    """By transformers, without a cache."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(loaded.checkpoint.path, dtype=torch.float32)
    ids = loaded.tokenizer.encode(prompt)
    with torch.inference_mode():
        for _ in range(n):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-n:]


def test_greedy_tokens_are_those_of_transformers(tiny: Loaded, serve: Serve) -> None:
    params = replace(GREEDY, ignore_eos=True)
    served = serve(tiny, step_tokens=16)
    for prompt in PROMPTS[:3]:
        answer = served.ask(prompt, params).answer()
        assert answer.tokens == greedy_tokens(tiny, prompt, 16)
        assert answer.reason == "length"


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(max_tokens=20, seed=5, top_p=0.9, presence_penalty=0.5)]
)
def test_alone_equals_batched(tiny: Loaded, serve: Serve, params: SamplingParams) -> None:
    served = serve(tiny)
    alone = served.alone(PROMPTS, params)
    together = served.together(PROMPTS, params)
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.text for a in together] == [a.text for a in alone]


def test_a_hit_equals_a_cold_run(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    prompt = PROMPTS[2]
    cold = served.ask(prompt).answer()
    hit = served.ask(prompt).answer()
    n_prompt = len(tiny.tokenizer.encode(prompt))
    assert (cold.cached_tokens, hit.cached_tokens) == (0, n_prompt - 1)
    assert hit.tokens == cold.tokens
    turn_two = (*tiny.tokenizer.encode(prompt), *cold.tokens, *tiny.tokenizer.encode(" go on"))
    warm = served.ask(turn_two).answer()
    fresh = served.ask(turn_two, tenant="another").answer()
    assert warm.cached_tokens == n_prompt + len(cold.tokens) - 1  # the last one was never run
    assert fresh.cached_tokens == 0
    assert warm.tokens == fresh.tokens


def test_parked_equals_undisturbed(tiny: Loaded, serve: Serve) -> None:
    """Sampled with a seed and penalties, so that generator and counts are parked too."""
    params = SamplingParams(
        max_tokens=70, seed=11, temperature=0.9, frequency_penalty=0.3, ignore_eos=True
    )
    expected = serve(tiny).alone(PROMPTS, params)
    tight = serve(tiny, 192 << 10, max_context_tokens=300)
    found = tight.together(PROMPTS, params)
    assert tight.engine.stats().parked_total > 0
    assert [a.tokens for a in found] == [a.tokens for a in expected]
    assert [a.text for a in found] == [a.text for a in expected]


def test_64_chats_in_a_tight_arena(tiny: Loaded, serve: Serve) -> None:
    prompts = [
        f"{'You are a helpful assistant. ' * 2}Chat {i}: {'x' * (i % 23)}" for i in range(64)
    ]
    params = replace(GREEDY, max_tokens=24, ignore_eos=True)
    alone = serve(tiny).alone(prompts, params)
    tight = serve(tiny, 384 << 10, max_sequences=64, step_tokens=128, max_context_tokens=200)
    together = tight.together(prompts, params)
    assert [a.text for a in together] == [a.text for a in alone]
    assert {a.reason for a in together} == {"length"}
    stats = tight.engine.stats()
    assert stats.evicted_blocks > 0
    assert stats.parked_total > 0
    assert stats.generated_tokens == 64 * 24
    tight.assert_nothing_held()


def test_cancel_frees_the_blocks_before_the_next_step(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    long = replace(GREEDY, max_tokens=500, ignore_eos=True)
    stays, goes = served.ask(PROMPTS[0], long), served.ask(PROMPTS[4], long)
    for reply in (stays, goes):
        reply.next_event()
    served.gate.hold()
    assert served.gate.arrived.wait(60)  # in the middle of a step
    both = served.engine.stats().held_bytes
    served.engine.cancel(goes.request_id)
    served.engine.cancel("unknown")
    served.gate.arrived.clear()
    served.gate.open.set()
    answer = goes.answer()
    assert answer.reason == "cancelled"
    assert served.engine.stats().held_bytes < both
    served.engine.cancel(stays.request_id)
    assert stays.answer().reason == "cancelled"
    served.assert_nothing_held()


def test_cancel_before_it_began(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    served.gate.hold()
    first, second = served.ask(PROMPTS[0]), served.ask(PROMPTS[1], n=3)
    served.engine.cancel(second.request_id)
    served.gate.open.set()
    assert [a.reason for a in second.answers()] == ["cancelled"] * 3
    assert first.answer().reason == "length"


def test_n_answers_share_the_prompt(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    params = SamplingParams(max_tokens=12, seed=40, ignore_eos=True)
    prompt = PROMPTS[2]
    answers = served.ask(prompt, params, n=4).answers()
    assert len({tuple(a.tokens) for a in answers}) == 4
    n_prompt = len(tiny.tokenizer.encode(prompt))
    assert answers[0].cached_tokens == 0
    for sibling in answers[1:]:
        assert sibling.cached_tokens >= (n_prompt - 1) // 8 * 8
    for i, answer in enumerate(answers):  # sibling i draws from seed + i
        single = served.ask(prompt, replace(params, seed=40 + i), tenant=f"t{i}").answer()
        assert single.tokens == answer.tokens


def test_without_a_seed_answers_differ(tiny: Loaded, serve: Serve) -> None:
    answers = serve(tiny).ask("x", SamplingParams(max_tokens=20, ignore_eos=True), n=3).answers()
    assert len({tuple(a.tokens) for a in answers}) == 3


def test_stop_strings(tiny: Loaded, serve: Serve) -> None:
    """Over any stop string that occurs, however the text falls into tokens."""
    served = serve(tiny)
    params = SamplingParams(max_tokens=60, seed=3, ignore_eos=True)
    whole = served.ask("stop", params).answer().text
    for start, stop in ((3, 5), (7, 8), (11, 17)):
        wanted = whole[start:stop]
        reply = served.ask("stop", replace(params, stop=("never!", wanted)))
        answer = reply.answer()
        assert answer.reason == "stop"
        assert answer.text == whole[: whole.index(wanted)]
    held = served.ask("stop", replace(params, stop=(whole[-2:] + "more",))).answer()
    assert (held.text, held.reason) == (whole, "length"), "what was held back comes at the end"


def test_end_tokens(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    (eos,) = tiny.tokenizer.eos_token_ids
    push = SamplingParams(max_tokens=6, temperature=0, logit_bias=((eos, 100.0),))
    ended = served.ask("hello", push).answer()
    assert (ended.tokens, ended.text, ended.reason) == ([eos], "", "stop")
    ignored = served.ask("hello", replace(push, ignore_eos=True)).answer()
    assert (ignored.tokens, ignored.text, ignored.reason) == ([eos] * 6, "", "length")
    free = served.ask("hello", replace(GREEDY, ignore_eos=True)).answer()
    by_id = served.ask("hello", replace(GREEDY, stop_token_ids=(free.tokens[4],))).answer()
    n = free.tokens.index(free.tokens[4]) + 1
    assert (by_id.tokens, by_id.reason) == (free.tokens[:n], "stop")
    assert by_id.text == tiny.tokenizer.decode(free.tokens[: n - 1])


def test_no_half_characters(tiny: Loaded, serve: Serve) -> None:
    """The bytes of a three-byte character are forced one after the other."""
    served = serve(tiny)
    first, *_ = tiny.tokenizer.encode("€")
    params = SamplingParams(max_tokens=1, temperature=0, logit_bias=((first, 100.0),))
    cut = served.ask("price: ", params).answer()
    assert (cut.text, cut.reason) == ("", "length"), "half a character is no text"
    assert len(cut.tokens) == 1
    two = served.ask("price: ", replace(params, max_tokens=2))
    assert two.next_event().text == ""
    assert two.next_event().text == "\ufffd", "the second one shows that the first makes none"


def test_logprobs(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    answer = served.ask("abc", replace(GREEDY, logprobs=3, ignore_eos=True)).answer()
    assert [lp.token_id for lp in answer.logprobs] == answer.tokens
    for logprob in answer.logprobs:
        assert len(logprob.top) == 3
        assert logprob.top[0] == (logprob.token_id, logprob.logprob)
        values = [value for _, value in logprob.top]
        assert values == sorted(values, reverse=True)
        assert sum(np.exp(values)) <= 1 + 1e-5
    assert served.ask("abc").answer().logprobs == []


def test_max_tokens_default_is_what_fits(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny, max_context_tokens=50)
    params = SamplingParams(temperature=0, ignore_eos=True)
    answer = served.ask(tuple(range(20)), params).answer()
    assert (len(answer.tokens), answer.reason) == (30, "length")
    assert answer.last is not None
    assert answer.last.usage is not None
    assert (answer.last.usage.prompt_tokens, answer.last.usage.completion_tokens) == (20, 30)


def refused(served: Served, prompt: tuple[int, ...], params: SamplingParams) -> RequestError:
    with pytest.raises(RequestError) as caught:
        served.ask(prompt, params)
    return caught.value


def test_what_can_never_fit_is_refused_with_the_number_that_would(
    tiny: Loaded, serve: Serve
) -> None:
    served = serve(tiny, max_context_tokens=50)
    error = refused(served, (1,) * 60, GREEDY)
    assert (error.field, error.code) == ("prompt", "context_length_exceeded")
    assert "60 tokens" in error.reason
    assert "max_tokens is 16" in error.reason
    assert "up to 34 would fit" in error.reason
    for answer_tokens, most_tokens in ((None, 49), (49, 1), (50, 49)):
        error = refused(served, (1,) * 60, replace(GREEDY, max_tokens=answer_tokens))
        assert f"up to {most_tokens} would fit" in error.reason
    error = refused(served, (1,) * 40, GREEDY)
    assert (error.field, error.code) == ("max_tokens", "context_length_exceeded")
    assert "up to 10 would fit" in error.reason
    assert served.ask((1,) * 40, replace(GREEDY, max_tokens=10)).answer().reason == "length"
    assert served.ask((1,) * 49, replace(GREEDY, max_tokens=1)).answer().reason == "length"


def test_the_arena_can_be_what_limits_the_context(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny, 64 << 10, step_tokens=16)
    most = served.engine.limits.max_context_tokens
    assert 16 < most < 1024
    assert f"up to {most - 16} would fit" in refused(served, (1,) * 900, GREEDY).reason
    answer = served.ask((7,) * 3, SamplingParams(temperature=0, ignore_eos=True)).answer()
    assert len(answer.tokens) == most - 3


def test_wrong_requests(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    assert refused(served, (), GREEDY).field == "prompt"
    assert "257" in refused(served, (1, 257), GREEDY).reason
    assert "-1" in refused(served, (1, -1), GREEDY).reason
    assert refused(served, (1,), replace(GREEDY, logit_bias=((300, 1.0),))).field == "logit_bias"
    assert refused(served, (1,), replace(GREEDY, stop_token_ids=(300,))).field == "stop_token_ids"
    with pytest.raises(RequestError, match="n must be at least 1"):
        served.engine.submit((1,), GREEDY, print, n=0)


def test_a_failed_step_ends_its_requests_and_no_other(
    tiny: Loaded, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(tiny, max_sequences=2, step_tokens=64)
    long = replace(GREEDY, max_tokens=100, ignore_eos=True)
    expected = served.alone(PROMPTS[:3], long)
    failing = [served.ask(prompt, long) for prompt in PROMPTS[:2]]
    waiting = served.ask(PROMPTS[2], long)
    failing[1].next_event()
    served.gate.fail_with = MemoryError("no scratch left")
    for reply, whole in zip(failing, expected, strict=False):
        answer = reply.answer()
        assert answer.reason == "error"
        assert answer.last is not None
        assert "MemoryError" in str(answer.last.error)
        assert answer.tokens == whole.tokens[: len(answer.tokens)]
    assert "Traceback" in caplog.text
    assert waiting.answer().tokens == expected[2].tokens
    again = [served.ask(prompt, long).answer() for prompt in PROMPTS[:2]]
    assert [a.tokens for a in again] == [a.tokens for a in expected[:2]]
    assert again[0].cached_tokens > 0, "what was computed before the failure is reused"


def test_damaged_logits_end_their_own_request_only(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    long = replace(GREEDY, max_tokens=30, ignore_eos=True)
    expected = served.alone(PROMPTS[:3], long)

    def second_of_three(batch: AttentionBatch) -> slice | None:
        n_sequences = len(batch.context_tokens)
        decoding = batch.query_start[-1] == n_sequences
        return slice(1, 2) if n_sequences == 3 and decoding else None

    served.gate.damage = second_of_three
    answers = served.together(PROMPTS[:3], long)
    served.gate.damage = lambda batch: None
    assert [a.reason for a in answers] == ["length", "error", "length"]
    assert answers[1].last is not None
    assert "not finite" in str(answers[1].last.error)
    assert answers[1].tokens == expected[1].tokens[: len(answers[1].tokens)]
    assert [answers[i].tokens for i in (0, 2)] == [expected[i].tokens for i in (0, 2)]
    turn_two = (*tiny.tokenizer.encode(PROMPTS[1]), *expected[1].tokens[:5])
    after = served.ask(turn_two, replace(long, max_tokens=25)).answer()
    assert after.tokens == expected[1].tokens[5:], "damaged rows must not be reused"


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16", "int8"])
def test_damaged_rows_of_an_early_chunk_are_never_reused(
    tiny: Loaded, serve: Serve, codec: str
) -> None:
    """No logits are computed for it, so nobody saw that its rows are NaN."""
    served = serve(tiny, step_tokens=16, block_tokens=4, codec=codec)
    prompt = tuple(tiny.tokenizer.encode(PROMPTS[4]))
    expected = served.ask(prompt, tenant="sound").answer()
    damaged: list[bool] = []

    def third_chunk(batch: AttentionBatch) -> slice | None:
        damaged.append(batch.context_tokens[0] == 48)
        return slice(3, 5) if damaged[-1] else None

    served.gate.damage = third_chunk
    answer = served.ask(prompt).answer()
    served.gate.damage = lambda batch: None
    assert answer.last is not None
    assert (answer.reason, answer.last.error) == ("error", NOT_FINITE)
    assert answer.tokens == []
    assert len(damaged) == 3, "it ends with the chunk"
    again = served.ask(prompt).answer()
    assert again.tokens == expected.tokens
    assert again.cached_tokens == 32, "the chunks before it are reused"


def test_too_many_waiting_requests_are_refused(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny, max_sequences=1, max_waiting_requests=2)
    long = replace(GREEDY, max_tokens=400, ignore_eos=True)
    running = served.ask(PROMPTS[0], long)
    running.next_event()
    waiting = [served.ask(prompt) for prompt in PROMPTS[1:3]]
    for _ in range(2):
        with pytest.raises(RequestError, match="2 requests wait already") as caught:
            served.ask(PROMPTS[3])
        assert caught.value.code == QUEUE_FULL
    served.engine.cancel(waiting[0].request_id)
    assert waiting[0].answer().reason == "cancelled"
    third = served.ask(PROMPTS[3])  # there is room again
    served.engine.cancel(running.request_id)
    assert waiting[1].answer().reason == third.answer().reason == "length"
    assert served.engine.stats().refused_total == 2
    for prompt in PROMPTS:
        assert served.ask(prompt).answer().reason == "length", "who has begun does not wait"


def test_a_failed_first_step_lets_the_siblings_try(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    served.gate.fail_with = RuntimeError("once")
    answers = served.ask("hello", n=3).answers()
    assert [a.reason for a in answers] == ["error", "length", "length"]


def test_a_sink_that_raises_loses_only_its_own_request(
    tiny: Loaded, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(tiny)
    seen: list[Event] = []

    def broken(event: Event) -> None:
        seen.append(event)
        raise ValueError("client is gone")

    served.gate.hold()
    long = replace(GREEDY, max_tokens=200, ignore_eos=True)
    ids = tuple(tiny.tokenizer.encode(PROMPTS[0]))
    served.engine.submit(ids, long, broken, n=2)
    other = served.ask(PROMPTS[4])
    served.gate.open.set()
    assert other.answer().reason == "length"
    assert len(seen) == 1
    assert "client is gone" in caplog.text
    served.assert_nothing_held()


def test_shutdown_lets_running_requests_finish(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    reply = served.ask(PROMPTS[0], replace(GREEDY, max_tokens=30, ignore_eos=True))
    served.engine.shutdown(grace_s=60)
    assert reply.answer().reason == "length"
    assert len(reply.answer().tokens) == 30
    with pytest.raises(RequestError, match="shutting down"):
        served.ask(PROMPTS[0])


def test_shutdown_cancels_what_is_left(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    long = replace(GREEDY, max_tokens=800, ignore_eos=True)
    replies = [served.ask(prompt, long) for prompt in PROMPTS]
    replies[0].next_event()
    start_s = time.monotonic()
    served.engine.shutdown(grace_s=0.05)
    assert time.monotonic() - start_s < 10
    assert {reply.answer().reason for reply in replies} <= {"cancelled", "length"}
    assert replies[-1].answer().reason == "cancelled"


def test_an_idle_engine_sleeps(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny)
    served.ask("x").answer()
    steps = served.engine.stats().steps
    cpu_before = time.process_time()
    time.sleep(0.5)
    assert served.engine.stats().steps == steps
    assert time.process_time() - cpu_before < 0.1


def test_many_threads_submit_and_cancel(tiny: Loaded, serve: Serve) -> None:
    served = serve(tiny, 512 << 10, max_sequences=8, max_context_tokens=200)
    reasons: list[str | None] = []

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        for turn in range(6):
            params = SamplingParams(max_tokens=int(rng.integers(1, 30)), seed=turn, ignore_eos=True)
            reply: Reply = served.ask(PROMPTS[int(rng.integers(len(PROMPTS)))][:120], params)
            if turn % 3 == 1:
                served.engine.cancel(reply.request_id)
            reasons.append(reply.answer().reason)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(reasons) == 48
    assert set(reasons) <= {"length", "cancelled"}
    served.assert_nothing_held()
