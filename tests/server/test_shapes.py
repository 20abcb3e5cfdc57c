"""What the openai client gets: answers, chunks, usage, logprobs, n, stop."""

from __future__ import annotations

import json
from typing import Any

import pytest

TEXT = "Grüße 🙂 aus 東京"


def chat(server: Any, **options: Any) -> Any:
    options.setdefault("messages", [{"role": "user", "content": "hi"}])
    return server.client().chat.completions.create(model=server.model, **options)


def test_chat(plain: Any) -> None:
    reply = chat(plain, messages=[{"role": "user", "content": TEXT}])
    prompt = f"<user>{TEXT}<assistant>"
    n_bytes = len(prompt.encode())
    assert reply.object == "chat.completion"
    assert reply.model == plain.model
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == prompt
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].logprobs is None
    assert reply.usage.prompt_tokens == n_bytes
    assert reply.usage.completion_tokens == n_bytes + 1
    assert reply.usage.total_tokens == 2 * n_bytes + 1
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    assert reply.id == f"chatcmpl-{reply._request_id}"


def test_developer_is_system_and_parts_are_joined(plain: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    assert chat(plain, messages=messages).choices[0].message.content == (
        "<system>x<user>ab<assistant>"
    )


def test_stream_chunks(plain: Any) -> None:
    stream = chat(plain, stream=True, messages=[{"role": "user", "content": TEXT}])
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == f"<user>{TEXT}<assistant>"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_stream_on_the_wire(plain: Any, path: str) -> None:
    body: dict[str, Any] = {"model": plain.model, "stream": True}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": TEXT}]
    else:
        body["prompt"] = TEXT
    frames = []
    with plain.http.stream("POST", path, json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        for raw in response.iter_raw():
            # a network read may hold several frames, but each one is whole JSON and whole UTF-8
            frames += [part for part in raw.decode().split("\n\n") if part]
    assert frames[-1] == "data: [DONE]"
    pieces = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
    assert all("usage" not in piece for piece in pieces)
    assert "\ufffd" not in json.dumps(pieces, ensure_ascii=False)
    if "chat" in path:
        assert pieces[-1]["choices"][0] == {
            "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"
        }  # fmt: skip


def test_usage_comes_last_and_once(plain: Any) -> None:
    *chunks, last = chat(plain, stream=True, n=2, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert last.choices == []
    n_prompt = len("<user>hi<assistant>")
    assert last.usage.prompt_tokens == n_prompt
    assert last.usage.completion_tokens == 2 * (n_prompt + 1)
    assert last.usage.prompt_tokens_details.cached_tokens == 0, "one of the two computed it"


def test_n_answers(plain: Any) -> None:
    reply = chat(plain, n=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3, 4]
    assert len({choice.message.content for choice in reply.choices}) == 1
    streamed: dict[int, str] = {}
    for chunk in chat(plain, n=5, stream=True):
        (choice,) = chunk.choices
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == dict.fromkeys(range(5), reply.choices[0].message.content)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(plain: Any, name: str) -> None:
    choice = chat(plain, **{name: 3}).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "<us")


def test_chat_logprobs(plain: Any) -> None:
    messages = [{"role": "user", "content": "é"}]
    choice = chat(plain, messages=messages, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    assert bytes(b for token in content for b in token.bytes).decode() == choice.message.content
    assert {token.logprob for token in content} == {-0.5}
    assert [top.token for top in content[0].top_logprobs] == ["<", "="]
    half = next(token for token in content if token.bytes == [0xC3])
    assert half.token == "\ufffd"
    streamed = [
        token
        for chunk in chat(plain, messages=messages, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in content]
    assert streamed[0].top_logprobs == []


def test_completion_forms(plain: Any) -> None:
    create = plain.client().completions.create
    for prompt, expected in [
        ("abc", ["abc"]),
        (["abc", "d"], ["abc", "d"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ]:
        reply = create(model=plain.model, prompt=prompt)
        assert [choice.text for choice in reply.choices] == expected
        assert [choice.index for choice in reply.choices] == list(range(len(expected)))
        assert reply.usage.prompt_tokens == sum(map(len, expected))


def test_prompts_times_n_are_numbered_by_prompt(plain: Any) -> None:
    create = plain.client().completions.create
    reply = create(model=plain.model, prompt=["a", "b"], n=2, echo=True)
    assert [choice.text for choice in reply.choices] == ["aa", "aa", "bb", "bb"]
    assert reply.usage.prompt_tokens == 2
    texts = [""] * 4
    for piece in create(model=plain.model, prompt=["a", "b"], n=2, echo=True, stream=True):
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == ["aa", "aa", "bb", "bb"]


def test_completion_defaults_to_16_tokens(plain: Any) -> None:
    reply = plain.client().completions.create(model=plain.model, prompt="x" * 40)
    assert reply.usage.completion_tokens == 16
    assert reply.choices[0].finish_reason == "length"


def test_legacy_logprobs(plain: Any) -> None:
    create = plain.client().completions.create
    (choice,) = create(model=plain.model, prompt="aé🙂b", logprobs=1, max_tokens=20).choices
    logprobs = choice.logprobs
    assert logprobs.tokens[:3] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.text_offset[:4] == [0, 1, 2, 2]
    assert logprobs.text_offset[7] == choice.text.index("b")
    assert set(logprobs.token_logprobs) == {-0.5}
    assert logprobs.top_logprobs[0] == {"a": -0.5}
    offsets = [
        offset
        for piece in create(
            model=plain.model, prompt="aé🙂b", logprobs=1, max_tokens=20, stream=True
        )
        if piece.choices[0].logprobs
        for offset in piece.choices[0].logprobs.text_offset
    ]
    assert offsets == logprobs.text_offset


@pytest.mark.parametrize("stop", ["<as", ["zzz", "<as"]])
def test_stop(plain: Any, stop: Any) -> None:
    choice = chat(plain, stop=stop).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content.startswith("<user>hi")
    assert "<as" not in choice.message.content


def test_sampling_reaches_the_engine(plain: Any) -> None:
    chat(
        plain, temperature=0.5, top_p=0.9, seed=-4, presence_penalty=1, frequency_penalty=-1,
        logit_bias={"65": -100, "66": 2.5}, stop=["q"], user="u", max_tokens=9,
        extra_body={"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [10],
                    "ignore_eos": True},
    )  # fmt: skip
    params = plain.engine.params[-1]
    assert params.temperature == 0.5
    assert params.top_p == 0.9
    assert params.seed == -4
    assert params.presence_penalty == 1
    assert params.frequency_penalty == -1
    assert params.logit_bias == ((65, -100.0), (66, 2.5))
    assert params.stop == ("q",)
    assert params.max_tokens == 9
    assert params.top_k == 4
    assert params.min_p == 0.1
    assert params.repetition_penalty == 1.1
    assert params.stop_token_ids == (10,)
    assert params.ignore_eos
    assert params.logprobs is None


def test_null_means_not_given_and_harmless_fields_are_ignored(plain: Any) -> None:
    body = {
        "model": plain.model, "messages": [{"role": "user", "content": "hi", "name": "ann"}],
        "temperature": None, "stop": None, "logit_bias": None, "n": None, "functions": None,
        "tool_choice": "auto", "response_format": {"type": "text"}, "store": True, "user": "u",
        "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True, "tools": [],
    }  # fmt: skip
    response = plain.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert plain.engine.params[-1].temperature == 1.0


def test_a_reply_can_be_sent_back(plain: Any) -> None:
    message = chat(plain).choices[0].message
    history = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "more"}]
    assert chat(plain, messages=history).choices[0].finish_reason == "stop"
    history[1] = message.model_dump()
    assert chat(plain, messages=history).choices[0].finish_reason == "stop"


def test_every_reply_names_what_it_came_from(plain: Any) -> None:
    client = plain.client()
    chat: dict[str, Any] = {"model": plain.model, "messages": [{"role": "user", "content": "x"}]}
    text: dict[str, Any] = {"model": plain.model, "prompt": "x"}
    replies = [
        client.chat.completions.create(**chat),
        *client.chat.completions.create(**chat, stream=True),
        client.completions.create(**text),
        *client.completions.create(**text, stream=True),
    ]
    assert {reply.system_fingerprint for reply in replies} == {"fp_scripted"}
