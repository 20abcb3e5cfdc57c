"""Disconnects, slow clients, many streams, keys and tenants, metrics, tokenize."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from holdover.engine.api import Usage
from holdover.server.gate import tenant_of
from holdover.server.replies import total_usage

Soon = Callable[..., bool]
LONG = {"max_tokens": 2000}


def idle(server: Any) -> bool:
    return server.engine.stats().held_bytes == 0


def endless(prompt: str) -> bytes:
    return b"x" * 2000


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(
    start: Any, soon: Soon, path: str, stream: bool
) -> None:
    server = start(endless, step_s=0.01)
    body: dict[str, Any] = {"model": server.model, "stream": stream, "n": 3, **LONG}
    body |= {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        assert soon(lambda: server.engine.stats().running == 3)
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    left_s = time.monotonic()
    assert soon(lambda: idle(server))
    assert time.monotonic() - left_s < 0.5
    assert server.engine.generated_tokens < 3 * 500
    assert soon(lambda: server.metric('holdover_answers_total{finish_reason="cancelled"}') == 3)


def test_the_openai_client_closing_a_stream(start: Any, soon: Soon) -> None:
    server = start(endless, step_s=0.01)
    with server.client().completions.create(
        model=server.model, prompt="x", stream=True, **LONG
    ) as pieces:
        next(iter(pieces))
        assert not idle(server)
    assert soon(lambda: idle(server))


def test_a_client_that_leaves_with_half_a_body(start: Any) -> None:
    server = start()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"model":'
        )
        time.sleep(0.1)
    assert server.client().completions.create(model=server.model, prompt="x").choices[0].text
    assert not server.engine.prompts[1:]


def test_a_slow_client_holds_up_nobody(start: Any, soon: Soon) -> None:
    # more than the socket buffers hold, read by nobody
    server = start(lambda prompt: b"x" * 3000 if prompt == "slow" else b"quick")
    host, port = server.url.removeprefix("http://").split(":")
    body = {"model": server.model, "prompt": "slow", "stream": True, "max_tokens": 3001, "n": 64}
    data = json.dumps({**body, "logprobs": 5}).encode()
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    assert soon(lambda: server.engine.generated_tokens > 64 * 50, timeout_s=30)
    reply = server.client().completions.create(model=server.model, prompt="x")
    assert reply.choices[0].text == "quick"
    assert server.engine.longest_sink_s < 0.5
    connection.close()
    assert soon(lambda: idle(server))


def test_32_streams_at_once(start: Any) -> None:
    server = start(lambda prompt: f"{prompt} → {prompt} 🙂".encode(), step_s=0.002)

    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        stream = await client.completions.create(
            model=server.model, prompt=f"number {i}", stream=True, max_tokens=100
        )
        return "".join([piece.choices[0].text async for piece in stream])

    async def everyone() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, i) for i in range(32)))

    began_s = time.monotonic()
    texts = asyncio.run(everyone())
    assert texts == [f"number {i} → number {i} 🙂" for i in range(32)]
    assert time.monotonic() - began_s < 10
    assert idle(server)
    assert server.engine.longest_sink_s < 0.5


def test_keys_and_tenants(start: Any) -> None:
    server = start(api_keys=("sk-anna", "sk-bert"))
    for key in ("sk-anna", "sk-anna"):
        server.client(key).completions.create(model=server.model, prompt="x")
    headers = {"Authorization": "Bearer sk-bert"}
    body = {"model": server.model, "prompt": "x"}
    assert server.post("/v1/completions", json=body, headers=headers).status_code == 200
    anna, again, bert = server.engine.tenants
    assert anna == again == tenant_of("sk-anna")
    assert bert == tenant_of("sk-bert") != anna
    assert "sk-" not in anna
    assert "anna" not in anna


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Bearer sk-anna2", "Basic sk-anna", "sk-anna"],
)
def test_wrong_key(start: Any, header: str | None) -> None:
    server = start(api_keys=("sk-anna",))
    headers = {} if header is None else {"Authorization": header}
    body = {"model": server.model, "prompt": "x"}
    for response in (
        server.post("/v1/completions", json=body, headers=headers),
        server.post("/tokenize", json=body, headers=headers),
        server.post("/v1/completions", content=b"x" * 10_000_000, headers=headers),
        server.get("/v1/models", headers=headers),
        server.get("/metrics", headers=headers),
    ):
        assert response.status_code == 401, response.text
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"
    assert server.get("/health").status_code == 200
    assert not server.engine.prompts


def test_the_client_sees_a_wrong_key(start: Any) -> None:
    server = start(api_keys=("sk-anna",))
    with pytest.raises(openai.AuthenticationError):
        server.client("sk-bert").models.list()


def test_models(plain: Any) -> None:
    client = plain.client()
    (model,) = client.models.list().data
    assert model.id == plain.model
    assert model.model_extra == {"max_model_len": 4096}
    assert client.models.retrieve(plain.model).id == plain.model


def test_tokenize(plain: Any) -> None:
    reply = plain.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert reply["tokens"] == [104, 0xC3, 0xA9]
    assert (reply["count"], reply["max_model_len"]) == (3, 4096)
    assert reply["token_strs"][0] == "h"
    back = plain.post("/detokenize", json={"tokens": reply["tokens"]}).json()
    assert back == {"prompt": "hé"}
    messages = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}
    reply = plain.post("/tokenize", json={**messages, "model": plain.model}).json()
    assert bytes(reply["tokens"]) == b"<user>x"


def test_long_text_is_tokenized_off_the_loop(start: Any) -> None:
    server = start()
    inside = threading.Event()
    go_on = threading.Event()
    encode = server.tokenizer.encode

    def slow(text: str, *more: Any) -> list[int]:
        if len(text) > 100_000:
            inside.set()
            assert go_on.wait(10)
        return encode(text, *more)

    server.tokenizer.encode = slow
    long = threading.Thread(
        target=server.post, args=["/tokenize"], kwargs={"json": {"prompt": "x" * 200_000}}
    )
    long.start()
    assert inside.wait(5)
    assert server.get("/health", timeout=3).status_code == 200
    body = {"model": server.model, "prompt": "x"}
    assert server.post("/v1/completions", json=body, timeout=3).status_code == 200
    go_on.set()
    long.join()


def test_a_line_for_each_finished_request(
    start: Any, soon: Soon, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start(lambda prompt: b"abc", log_requests=True)
    client = server.client()
    whole = client.completions.create(model=server.model, prompt="hello", n=2)
    server.post("/v1/completions", json={"model": server.model, "prompt": []})  # was never accepted
    list(client.completions.create(model=server.model, prompt="hello", stream=True, max_tokens=2))
    lines: list[str] = []  # the second is printed when its client has read the end already
    assert soon(lambda: lines.extend(capfd.readouterr().err.splitlines()) or len(lines) == 2)
    first, second = lines
    usage = whole.usage
    assert first.startswith(f"{whole.id}: prompt 5 tokens, ")
    assert f"cached {usage.prompt_tokens_details.cached_tokens}, " in first
    assert f"output {usage.completion_tokens}, " in first
    assert re.search(r"TTFT \d+\.\d{3} s, total \d+\.\d{3} s, 2 x stop$", first)
    assert second.endswith(" s, length")
    assert "hello" not in first + second


def test_a_client_that_leaves_has_its_line_too(
    start: Any, soon: Soon, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start(endless, step_s=0.01, log_requests=True)
    stream = server.client().completions.create(
        model=server.model, prompt="x", stream=True, max_tokens=900
    )
    next(iter(stream))
    stream.close()
    assert soon(lambda: idle(server))
    lines: list[str] = []
    assert soon(lambda: bool(lines.extend(capfd.readouterr().err.splitlines()) or lines))
    assert re.search(r"cached -, output \d+, TTFT .* cancelled$", lines[0])


def test_requests_are_counted_by_route(start: Any) -> None:
    server = start()
    for path in ("/openapi.json", "/v1/models", "/no/such", "/v1/models/acme/scripted"):
        server.get(path)
    text = server.get("/metrics").text
    for route in ("/openapi.json", "/v1/models", "unmatched", "/v1/models/{model_id:path}"):
        assert f'holdover_requests_total{{route="{route}"' in text, route
    assert "/no/such" not in text


def test_metrics(start: Any) -> None:
    server = start(lambda prompt: b"abc")
    client = server.client()
    client.completions.create(model=server.model, prompt="x")
    list(client.completions.create(model=server.model, prompt="y", stream=True, n=2))
    server.post("/v1/completions", json={})
    stats = server.engine.stats()
    metric = server.metric
    assert metric("holdover_kv_planned_bytes") == stats.planned_bytes
    assert metric("holdover_kv_allocated_bytes") == stats.allocated_bytes
    assert metric("holdover_kv_held_bytes") == metric("holdover_kv_logical_bytes") == 0
    assert metric("holdover_kv_cached_bytes") == 5
    assert metric('holdover_sequences{state="running"}') == 0
    assert metric("holdover_prompt_tokens_total") == 2
    assert metric("holdover_cached_tokens_total") == 7
    assert metric("holdover_generated_tokens_total") == 3 * 4
    assert metric("holdover_parked_total") == 3
    assert metric("holdover_evicted_blocks_total") == 4
    assert metric("holdover_time_to_first_token_seconds_count") == 3
    assert metric("holdover_inter_token_latency_seconds_count") == 3 * 3
    assert metric("holdover_request_duration_seconds_count") == 3
    assert metric('holdover_answers_total{finish_reason="stop"}') == 3
    ok, bad = (
        f'holdover_requests_total{{route="/v1/completions",status="{status}"}}'
        for status in (200, 400)
    )
    assert (metric(ok), metric(bad)) == (2, 1)


def test_two_servers_have_their_own_metrics(start: Any) -> None:
    one, two = start(), start()
    one.client().completions.create(model=one.model, prompt="x")
    name = 'holdover_answers_total{finish_reason="stop"}'
    assert one.metric(name) == 1
    with pytest.raises(StopIteration):
        two.metric(name)


def test_usage_of_several_prompts() -> None:
    usage = total_usage([Usage(10, 1, 0), Usage(10, 2, 9), Usage(5, 3, 4), Usage(5, 4, 4)], n=2)
    assert usage.prompt_tokens == 15
    assert usage.completion_tokens == 10
    assert usage.total_tokens == 25
    assert usage.prompt_tokens_details.cached_tokens == 4


@pytest.mark.parametrize("forgotten", [None, 0, 17])
def test_a_client_is_told_how_much_was_forgotten(start: Any, forgotten: int | None) -> None:
    """Where a window can forget; where none can, nothing is said of it."""
    server = start()
    server.engine.forgotten_tokens = forgotten
    client, told = server.client(), []
    messages = [{"role": "user", "content": "x"}]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for ask, what in (
        (client.chat.completions.create, {"messages": messages}),
        (client.completions.create, {"prompt": ["x", "y"]}),
    ):
        told.append(ask(model=server.model, **what).usage)
        *_, last = ask(model=server.model, **what, **options)
        told.append(last.usage)
    told.append(client.responses.create(model=server.model, input="x").usage)
    *_, last = client.responses.create(model=server.model, input="x", stream=True)
    told.append(last.response.usage)
    for usage in told:
        found = usage.model_dump()
        assert found.get("forgotten_tokens") == forgotten
        assert ("forgotten_tokens" in found) == (forgotten is not None)


def test_usage_of_several_prompts_is_of_the_longest_memory() -> None:
    answers = [Usage(10, 1, 0, None, n) for n in (3, 9)]
    assert total_usage([*answers, None], n=1).forgotten_tokens == 9


def test_landing_page_needs_nothing_from_elsewhere(plain: Any) -> None:
    page = plain.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text
    assert "img-src data:" in page.headers["content-security-policy"]  # or the icon is blocked


def test_openapi_names_the_request_bodies(plain: Any) -> None:
    paths = plain.get("/openapi.json").json()["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]
    assert "messages" in body["content"]["application/json"]["schema"]["properties"]
