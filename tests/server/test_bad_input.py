"""Bad input gets a 4xx in OpenAI's shape that names the field and the limit; never a 500."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import openai
import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
LONE = "a\ud800b"


def check(response: httpx.Response, status: int, param: str | None, *says: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["type"] in ("invalid_request_error", "authentication_error", "server_error")
    for part in says:
        assert part in error["message"], error
    assert "Traceback" not in response.text
    assert 'File "' not in response.text


def body_of(path: str, server: Any, fields: dict[str, Any]) -> bytes:
    body: dict[str, Any] = {"model": server.model}
    body |= {"messages": [USER]} if path == CHAT else {"prompt": "hi"}
    body |= fields
    body = {name: value for name, value in body.items() if value is not ...}
    return json.dumps(body).encode()


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {**USER, **fields}]}


NAN = float("nan")
FIELDS: list[tuple[str, dict[str, Any], int, str, str]] = [
    (CHAT, {"model": "gpt-9"}, 404, "model", "acme/scripted"),
    (CHAT, {"model": ...}, 400, "model", "required"),
    (CHAT, {"model": 5}, 400, "model", "string"),
    (CHAT, {"messages": ...}, 400, "messages", "required"),
    (CHAT, {"messages": []}, 400, "messages", "at least 1"),
    (CHAT, {"messages": "hi"}, 400, "messages", "list"),
    (CHAT, {"messages": [5]}, 400, "messages[0]", "an object"),
    (CHAT, message(role="robot"), 400, "messages[1].role", "'developer'"),
    (CHAT, message(role=None), 400, "messages[1].role", "null"),
    (CHAT, message(content=None), 400, "messages[1].content", "required"),
    (CHAT, message(content=5), 400, "messages[1].content", "string"),
    (CHAT, message(content=LONE), 400, "messages[1].content", "Unicode"),
    (CHAT, message(content=[{"type": "text", "text": LONE}]), 400, "messages[1].content", "Uni"),
    (
        CHAT,
        message(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        400,
        "messages[1].content",
        "text only",
    ),
    (CHAT, message(content=["x"]), 400, "messages[1].content", "part 0"),
    (CHAT, message(tool_calls=[{"id": "x"}]), 400, "messages[1].tool_calls", "tools"),
    (CHAT, message(weight=1), 400, "messages[1].weight", "unknown field"),
    (CHAT, message(role="tool"), 400, "messages", "template"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens", "at least 1"),
    (CHAT, {"max_tokens": -5}, 400, "max_tokens", "at least 1"),
    (CHAT, {"max_tokens": 10**30}, 400, "max_tokens", "2147483647"),
    (CHAT, {"max_tokens": 2.5}, 400, "max_tokens", "whole number"),
    (CHAT, {"max_tokens": "5"}, 400, "max_tokens", "whole number"),
    (CHAT, {"max_tokens": True}, 400, "max_tokens", "whole number"),
    (CHAT, {"max_tokens": 5000}, 400, "max_tokens", "4077"),
    (CHAT, {"max_completion_tokens": 0}, 400, "max_completion_tokens", "at least 1"),
    (CHAT, {"max_completion_tokens": 5000}, 400, "max_completion_tokens", "4077"),
    (CHAT, {"max_completion_tokens": 5, "max_tokens": 6}, 400, "max_tokens", "differ"),
    (CHAT, {"temperature": NAN}, 400, "temperature", "finite"),
    (CHAT, {"temperature": float("inf")}, 400, "temperature", "finite"),
    (CHAT, {"temperature": -0.1}, 400, "temperature", "between 0 and 100"),
    (CHAT, {"temperature": "1"}, 400, "temperature", "number"),
    (CHAT, {"temperature": 10**400}, 400, "temperature", "number"),
    (CHAT, {"top_p": 0}, 400, "top_p", "above 0"),
    (CHAT, {"top_p": 1.1}, 400, "top_p", "between 0 and 1"),
    (CHAT, {"top_k": 2**40}, 400, "top_k", "2147483647"),
    (CHAT, {"min_p": 2}, 400, "min_p", "between 0 and 1"),
    (CHAT, {"presence_penalty": 3}, 400, "presence_penalty", "between -2 and 2"),
    (CHAT, {"frequency_penalty": NAN}, 400, "frequency_penalty", "finite"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty", "between"),
    (CHAT, {"n": 0}, 400, "n", "at least 1"),
    (CHAT, {"n": 129}, 400, "n", "128"),
    (CHAT, {"seed": 2**70}, 400, "seed", "9223372036854775807"),
    (CHAT, {"seed": "x"}, 400, "seed", "whole number"),
    (CHAT, {"stop": ""}, 400, "stop", "empty"),
    (CHAT, {"stop": ["a"] * 17}, 400, "stop", "16"),
    (CHAT, {"stop": ["a", 5]}, 400, "stop[1]", "string"),
    (CHAT, {"stop": ["a", LONE]}, 400, "stop[1]", "Unicode"),
    (CHAT, {"stop": "x" * 2000}, 400, "stop[0]", "1024"),
    (CHAT, {"stop_token_ids": [257]}, 400, "stop_token_ids", "256"),
    (CHAT, {"logit_bias": {"257": 1}}, 400, "logit_bias", "256"),
    (CHAT, {"logit_bias": {"the": 1}}, 400, "logit_bias", "not a token id"),
    (CHAT, {"logit_bias": {LONE: 1}}, 400, "logit_bias", "not a token id"),
    (CHAT, {"logit_bias": {"5": 101}}, 400, "logit_bias", "between -100 and 100"),
    (CHAT, {"logit_bias": {"5": NAN}}, 400, "logit_bias.5", "finite"),
    (CHAT, {"logit_bias": {str(i): 0 for i in range(1025)}}, 400, "logit_bias", "1024"),
    (CHAT, {"logprobs": 3}, 400, "logprobs", "true or false"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "between 0 and 20"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs", "between 0 and 20"),
    (CHAT, {"top_logprobs": 3}, 400, "top_logprobs", "logprobs"),
    (CHAT, {"stream": "yes"}, 400, "stream", "true or false"),
    (CHAT, {"stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
    (CHAT, {"stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x", "unknown"),
    (CHAT, {"temprature": 1}, 400, "temprature", "'temperature'"),
    (CHAT, {LONE: 1}, 400, None, "Unicode"),  # type: ignore[list-item]
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools", "not supported"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice", "not supported"),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
    (CHAT, {"cache_salt": "x"}, 400, "cache_salt", "API key"),
    (CHAT, {"echo": True}, 400, "echo", "unknown field"),
    (TEXT, {"prompt": ...}, 400, "prompt", "required"),
    (TEXT, {"prompt": None}, 400, "prompt", "token ids"),
    (TEXT, {"prompt": ""}, 400, "prompt", "at least 1"),
    (TEXT, {"prompt": []}, 400, "prompt", "empty"),
    (TEXT, {"prompt": [[]]}, 400, "prompt", "not empty"),
    (TEXT, {"prompt": ["a", 5]}, 400, "prompt", "mixed"),
    (TEXT, {"prompt": [True]}, 400, "prompt", "token ids"),
    (TEXT, {"prompt": [257]}, 400, "prompt", "256"),
    (TEXT, {"prompt": [-1]}, 400, "prompt", "256"),
    (TEXT, {"prompt": [10**30]}, 400, "prompt", "256"),
    (TEXT, {"prompt": [[1], [10**30]]}, 400, "prompt", "256"),
    (TEXT, {"prompt": LONE}, 400, "prompt", "Unicode"),
    (TEXT, {"prompt": ["a", LONE]}, 400, "prompt", "Unicode"),
    (TEXT, {"prompt": "x" * 4096}, 400, "prompt", "4096 tokens"),
    (TEXT, {"prompt": "x" * 20_000}, 400, "prompt", "20000 tokens"),
    (TEXT, {"prompt": ["a"] * 129}, 400, "prompt", "128"),
    (TEXT, {"prompt": ["a"] * 65, "n": 2}, 400, "n", "130"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens", "at least 1"),
    (TEXT, {"logprobs": 21}, 400, "logprobs", "between 0 and 20"),
    (TEXT, {"logprobs": True}, 400, "logprobs", "whole number"),
    (TEXT, {"echo": True, "logprobs": 1}, 400, "echo", "not supported"),
    (TEXT, {"best_of": 4}, 400, "best_of", "not supported"),
    (TEXT, {"suffix": "x"}, 400, "suffix", "not supported"),
    (TEXT, {"messages": [USER]}, 400, "messages", "unknown field"),
    ("/tokenize", {"prompt": LONE}, 400, "prompt", "Unicode"),
    ("/tokenize", {"prompt": ...}, 400, "prompt", "either"),
    ("/tokenize", {"messages": [USER]}, 400, "prompt", "either"),
    ("/tokenize", {"prompt": "x", "model": "y"}, 404, "model", "does not exist"),
    ("/detokenize", {"prompt": ..., "tokens": [1, 300]}, 400, "tokens[1]", "256"),
    ("/detokenize", {"prompt": ...}, 400, "tokens", "required"),
]


@pytest.mark.parametrize(
    ("path", "fields", "status", "param", "says"),
    FIELDS,
    ids=[f"{i}-{path[4:6]}-{param}" for i, (path, _, _, param, _) in enumerate(FIELDS)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_fields(
    plain: Any,
    path: str,
    fields: dict[str, Any],
    status: int,
    param: str,
    says: str,
    stream: bool,
) -> None:
    if (
        stream
        and path in (CHAT, TEXT)
        and "stream" not in fields
        and "stream_options" not in fields
    ):
        fields = {**fields, "stream": True}
    response = plain.post(
        path,
        content=body_of(path, plain, fields),
        headers={"Content-Type": "application/json"},
    )
    check(response, status, param, says)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "x",}', "not valid JSON"),
        (b"\xff\xfe\xfa", "not valid JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"[]", "the request body"),
        (b"null", "the request body"),
        (b'"text"', "the request body"),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_bodies(plain: Any, path: str, raw: bytes, says: str) -> None:
    headers = {"Content-Type": "application/json"}
    check(plain.post(path, content=raw, headers=headers), 400, None, says)


def test_deep_but_parsable(plain: Any) -> None:
    for depth in (100, 500, 900):
        deep = b"[" * depth + b"]" * depth
        for field, status in ((b"metadata", 200), (b"tools", 400), (b"stop", 400), (b"model", 400)):
            raw = (
                b'{"model": "acme/scripted", "messages": [{"role": "user", "content": "x"}], "'
                + field + b'": ' + deep + b"}"
            )  # fmt: skip
            response = plain.post(CHAT, content=raw, headers={"Content-Type": "application/json"})
            assert response.status_code == status, (depth, field, response.text)


def test_numbers_that_overflow(plain: Any) -> None:
    raw = (
        b'{"model": "acme/scripted", "messages": [{"role": "user", "content": "x"}],'
        b' "temperature": 1e999}'
    )
    headers = {"Content-Type": "application/json"}
    check(plain.post(CHAT, content=raw, headers=headers), 400, "temperature", "finite")


def test_big_body(plain: Any) -> None:
    limit = str(4 << 20)
    with pytest.raises(openai.APIStatusError) as error:
        plain.client().completions.create(model=plain.model, prompt="x" * 10_000_000)
    assert error.value.status_code == 413
    assert limit in str(error.value)


def test_a_refused_body_is_read_so_that_the_answer_arrives(plain: Any) -> None:
    # a client that writes all before it reads would else see "connection reset"
    host, port = plain.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Content-Length: 20000000\r\n\r\n".encode()
        )
        connection.sendall(b"x" * 20_000_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_big_body_without_a_length(plain: Any) -> None:
    def pieces() -> Any:
        yield b'{"prompt": "'
        for _ in range(160):
            yield b"x" * 65536

    headers = {"Content-Type": "application/json"}
    check(plain.post(TEXT, content=pieces(), headers=headers), 413, None, str(4 << 20))


def test_body_just_below_the_limit_is_read(plain: Any) -> None:
    raw = b'{"prompt": "' + b"x" * ((4 << 20) - 14) + b'"}'
    assert len(raw) == 4 << 20
    response = plain.post("/tokenize", content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 200
    assert response.json()["count"] == (4 << 20) - 14


def test_routes_and_methods(plain: Any) -> None:
    check(plain.post("/v1/embeddings", json={}), 404, None, "/v1/embeddings")
    check(plain.get("/nothing"), 404, None, "GET /nothing")
    check(plain.get(CHAT), 405, None, "POST")
    check(plain.http.delete("/v1/models"), 405, None, "GET")
    check(plain.get("/v1/models/other"), 404, "model", "acme/scripted")


def test_content_type(plain: Any) -> None:
    check(plain.post(CHAT, content=b"{}"), 415, None, "application/json")
    check(plain.post(CHAT, data={"a": "b"}), 415, None, "application/json")
    headers = {"Content-Type": "application/json; charset=utf-8"}
    check(plain.post(CHAT, content=b"{}", headers=headers), 400, "model")


def test_the_client_raises_its_own_errors(plain: Any) -> None:
    client = plain.client()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=[USER])  # type: ignore[list-item]
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=plain.model, prompt="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "prompt"
    assert "4095" in str(long.value)


def test_the_engine_refuses(start: Any) -> None:
    server = start()
    server.engine.capacity_tokens = 8
    with pytest.raises(openai.BadRequestError) as error:
        server.client().chat.completions.create(model=server.model, messages=[USER])
    assert error.value.param == "messages"
    assert error.value.code == "context_length_exceeded"
    assert "8 would fit" in str(error.value)
    with pytest.raises(openai.BadRequestError):
        server.client().completions.create(model=server.model, prompt=["ok", "x" * 9])
    assert server.engine.stats().running == 0, "the first prompt was taken back"


def test_a_failing_engine(start: Any) -> None:
    server = start()
    client = server.client()
    with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(model=server.model, prompt="CRASH")
    assert "secret" not in str(error.value)
    with pytest.raises(openai.APIError) as broken:
        list(client.completions.create(model=server.model, prompt="CRASH", stream=True))
    assert "secret" not in str(broken.value)
    assert "engine failed" in str(broken.value)


def test_an_engine_that_stopped_makes_the_server_unhealthy(start: Any) -> None:
    server = start()
    server.engine.shutdown(0.0)
    response = server.post(TEXT, json={"model": server.model, "prompt": "x"})
    check(response, 503, None, "shutting down")
    assert response.headers["retry-after"] == "5"
    check(server.get("/health"), 503, None, "engine has stopped")


def test_a_bug_is_a_500_without_a_traceback(start: Any) -> None:
    server = start(answer=lambda prompt: 1 / 0)
    response = server.post(TEXT, json={"model": server.model, "prompt": "x"})
    check(response, 500, None, "internal error")
    assert "ZeroDivision" not in response.text


def test_too_many_waiting_requests(start: Any) -> None:
    server = start(lambda prompt: b"x" * 400, step_s=0.01)
    server.engine.most_running = 0
    headers = {"Content-Type": "application/json"}
    for path in (CHAT, TEXT):
        for stream in (False, True):
            raw = body_of(path, server, {"stream": stream})
            response = server.post(path, content=raw, headers=headers)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "2"
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert "wait already" in error["message"]
    with pytest.raises(openai.RateLimitError, match="wait already"):
        server.client().completions.create(model=server.model, prompt="hi")
    assert server.metric("holdover_refused_requests_total") == 5
    server.engine.most_running = 1
    assert server.post(CHAT, content=body_of(CHAT, server, {}), headers=headers).status_code == 200


def test_values_that_are_not_finite_are_said(start: Any) -> None:
    server = start()
    raw = body_of(TEXT, server, {"prompt": "NaN"})
    response = server.post(TEXT, content=raw, headers={"Content-Type": "application/json"})
    check(response, 500, None, "not finite (NaN or infinity)")
    assert response.json()["error"]["code"] == "not_finite"


def test_a_head_that_comes_byte_by_byte_is_cut_off(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdover.server.run.MAX_IDLE_S", 1.0)
    server = start(lambda prompt: b"x" * 300, step_s=0.01)
    host, port = server.url.removeprefix("http://").split(":")
    with (
        socket.create_connection((host, int(port))) as slow,
        server.client().completions.create(
            model=server.model, prompt="x", max_tokens=300, stream=True
        ) as stream,
    ):
        slow.settimeout(0.2)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        started_s, data = time.monotonic(), b"?"
        while data and time.monotonic() - started_s < 10:
            try:
                slow.sendall(b"x")
                data = slow.recv(100)
            except TimeoutError:
                pass
            except ConnectionError:
                data = b""
        assert data == b"", "the connection is still open"
        assert sum(len(c.choices[0].text) for c in stream if c.choices) == 300, "busy ones stay"
