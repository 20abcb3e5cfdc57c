"""/v1/responses and /v1/conversations over a scripted engine: shapes, tenants, the store."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from holdover.config import Config
from holdover.server.archive import Archive
from holdover.server.sealing import Checked, Encrypted, Sealer

from .scripted import ByteTokenizer, ScriptedEngine

KEYS = ("sk-anna", "sk-bert")


def ask(server: Any, text: Any = "hi", key: str = KEYS[0], **options: Any) -> Any:
    return server.client(key).responses.create(model=server.model, input=text, **options)


def prompt(server: Any, number: int = -1) -> str:
    return ByteTokenizer().decode(server.engine.prompts[number])


@pytest.fixture
def begin(serving: Any) -> Iterator[Callable[..., Any]]:
    """`with begin(path) as server:` on a file of that name, or in memory."""
    engines: list[ScriptedEngine] = []

    def start(path: Path | None = None, sealer: Sealer | None = None, **engine: Any) -> Any:
        engines.append(ScriptedEngine(**{"answer": lambda text: b"Yes.", **engine}))
        archive = Archive(path, sealer or Checked(), len(KEYS))
        config = Config(grace_s=0.2, api_keys=KEYS)
        return serving(engines[-1], ByteTokenizer(), config, archive=archive)

    yield start
    for engine in engines:
        engine.shutdown(0.0)


@pytest.fixture
def server(begin: Any, tmp_path: Path) -> Iterator[Any]:
    with begin(tmp_path / "kept.sqlite") as found:
        yield found


def test_a_response(server: Any) -> None:
    reply = ask(server, metadata={"a": "b"}, user="u", max_output_tokens=30, temperature=0)
    assert reply.object == "response"
    assert reply.id == f"resp_{reply._request_id}"
    assert (reply.status, reply.output_text) == ("completed", "Yes.")
    assert reply.output[0].content[0].annotations == []
    assert (reply.metadata, reply.user, reply.max_output_tokens) == ({"a": "b"}, "u", 30)
    assert reply.store
    n_prompt = len("<user>hi<assistant>")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (n_prompt, 5)
    assert reply.usage.total_tokens == n_prompt + 5
    again = server.client(KEYS[0]).responses.retrieve(reply.id)
    assert again.to_dict() == reply.to_dict()
    assert "holdover" not in reply.to_dict()


def test_what_came_out_too_short_says_so(server: Any) -> None:
    reply = ask(server, max_output_tokens=2)
    assert (reply.status, reply.output_text) == ("incomplete", "Ye")
    assert reply.incomplete_details.reason == "max_output_tokens"
    ask(server, "more", previous_response_id=reply.id)
    assert prompt(server) == "<user>hi<assistant>Ye<user>more<assistant>"


def test_a_turn_goes_on_from_the_tokens_that_were_computed(begin: Any) -> None:
    """Its answer is spelled in characters of two tokens, its end token is not in the template."""
    with begin(answer=lambda text: "süß".encode()) as server:
        first = ask(server, "one")
        ask(server, "two", previous_response_id=first.id)
        computed = (*server.engine.prompts[0], *"süß".encode())
        assert server.engine.prompts[1] == (*computed, *b"<user>two<assistant>")


def test_half_a_character_is_not_gone_on_from(begin: Any) -> None:
    with begin(answer=lambda text: b"a\xc3") as server:
        first = ask(server)
        assert first.output_text == "a"
        ask(server, "two", previous_response_id=first.id)
        assert prompt(server) == "<user>hi<assistant>a<user>two<assistant>"


def test_instructions_are_not_inherited(server: Any) -> None:
    first = ask(server, instructions="Be brief.")
    assert prompt(server) == "<system>Be brief.<user>hi<assistant>"
    second = ask(server, "two", previous_response_id=first.id, extra_body={"explain": True})
    assert prompt(server) == "<user>hi<assistant>Yes.<user>two<assistant>"
    assert second.instructions is None
    third = ask(server, "3", previous_response_id=second.id, instructions="Be rude.")
    assert prompt(server).startswith("<system>Be rude.<user>hi<assistant>Yes.<user>two")
    assert third.previous_response_id == second.id


def test_items_and_what_comes_back_as_input(server: Any) -> None:
    first = ask(server, [{"role": "developer", "content": "x"}, {"role": "user", "content": "hi"}])
    assert prompt(server) == "<system>x<user>hi<assistant>"
    whole = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        *[item.to_dict() for item in first.output],
        {"type": "message", "role": "user", "content": "more"},
    ]
    ask(server, whole)
    assert prompt(server) == "<user>hi<assistant>Yes.<user>more<assistant>"


def test_stream(server: Any) -> None:
    events = list(ask(server, stream=True, extra_body={"explain": False}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "Yes."
    last = events[-1].response
    assert last.output_text == "Yes."
    assert last.usage.output_tokens == 5
    assert events[0].response.status == "in_progress"
    assert server.client(KEYS[0]).responses.retrieve(last.id).to_dict() == last.to_dict()
    with server.client(KEYS[0]).responses.stream(
        model=server.model, input="more", previous_response_id=last.id
    ) as stream:
        assert stream.get_final_response().output_text == "Yes."
    assert prompt(server) == "<user>hi<assistant>Yes.<user>more<assistant>"


def test_a_stream_that_fails_ends_as_failed(server: Any) -> None:
    events = list(ask(server, "CRASH", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert "secret" not in events[-1].response.error.message
    with pytest.raises(openai.NotFoundError):
        server.client(KEYS[0]).responses.retrieve(events[-1].response.id)


def test_not_stored(server: Any) -> None:
    reply = ask(server, store=False)
    assert not reply.store
    assert reply.conversation is None
    with pytest.raises(openai.NotFoundError):
        server.client(KEYS[0]).responses.retrieve(reply.id)
    assert conversations(server)["data"] == []


def conversations(server: Any, key: str = KEYS[0], **query: Any) -> Any:
    response = server.get(
        "/v1/conversations", params=query, headers={"Authorization": f"Bearer {key}"}
    )
    assert response.status_code == 200, response.text
    return response.json()


def call(server: Any, method: str, path: str, key: str = KEYS[0], **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return server.http.request(method, f"/v1/{path}", headers=headers, **options)


def test_conversations(server: Any) -> None:
    client = server.client(KEYS[0])
    made = client.conversations.create(
        metadata={"topic": "x"}, items=[{"type": "message", "role": "system", "content": "S"}]
    )
    one = ask(server, "one", conversation=made.id)
    two = ask(server, "two", conversation={"id": made.id})
    assert prompt(server) == "<system>S<user>one<assistant>Yes.<user>two<assistant>"
    assert one.conversation.id == two.conversation.id == made.id
    found = client.conversations.retrieve(made.id).to_dict()
    n_tokens = len(prompt(server)) + 5
    assert found["tokens"] == n_tokens
    assert (found["turns"], found["last_response_id"]) == (2, two.id)
    assert (found["metadata"], found["pinned_until"]) == ({"topic": "x"}, None)
    assert found["reusable_tokens"] == n_tokens - 1
    assert found["bytes"] == {"arena": n_tokens}
    assert 0 <= found["age_s"] < 10
    three = ask(server, "three", previous_response_id=two.id)
    assert three.conversation.id == made.id, "its last response was gone on from"
    branch = ask(server, "other", previous_response_id=one.id)
    assert branch.conversation.id != made.id
    assert prompt(server) == "<system>S<user>one<assistant>Yes.<user>other<assistant>"


def test_listing_in_pages(server: Any) -> None:
    made = [ask(server, str(i)).conversation.id for i in range(5)]
    first = conversations(server, limit=2)
    assert [one["id"] for one in first["data"]] == made[:2:-1]
    assert first["has_more"]
    rest = conversations(server, limit=3, after=first["last_id"])
    assert [one["id"] for one in rest["data"]] == made[2::-1]
    assert not rest["has_more"]
    assert [one["id"] for one in conversations(server, order="asc")["data"]] == made
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}):
        assert call(server, "GET", "conversations", params=query).status_code == 400
    assert call(server, "GET", "conversations", params={"after": "conv_x"}).status_code == 404


def test_forks_do_not_need_what_they_come_from(server: Any) -> None:
    one = ask(server, "one")
    two = ask(server, "two", previous_response_id=one.id)
    source = one.conversation.id
    last = call(server, "POST", f"conversations/{source}/fork", json={}).json()
    early = call(
        server, "POST", f"conversations/{source}/fork",
        json={"response_id": one.id, "metadata": {"a": "b"}},
    ).json()  # fmt: skip
    assert (last["turns"], early["turns"], early["metadata"]) == (2, 1, {"a": "b"})
    assert call(server, "DELETE", f"conversations/{source}").status_code == 200
    n_two = len("<user>one<assistant>Yes.<user>two<assistant>Yes.") + 1
    assert server.engine.forgotten == [], f"all of the {n_two} tokens belong to the fork as well"
    ask(server, "x", conversation=last["id"])
    assert prompt(server) == "<user>one<assistant>Yes.<user>two<assistant>Yes.<user>x<assistant>"
    ask(server, "y", conversation=early["id"])
    assert prompt(server) == "<user>one<assistant>Yes.<user>y<assistant>"
    for gone in (one, two):
        with pytest.raises(openai.NotFoundError):
            ask(server, "z", previous_response_id=gone.id)
    copy = call(server, "GET", f"responses/{early['last_response_id']}").json()
    assert (copy["id"], copy["conversation"]) == (early["last_response_id"], {"id": early["id"]})


def test_pins_are_put_on_again_after_each_turn(server: Any) -> None:
    one = ask(server, "one")
    name = one.conversation.id
    pinned = call(server, "POST", f"conversations/{name}/pin", json={"ttl_s": 60}).json()
    assert pinned["pinned_until"] == pytest.approx(pinned["last_used_at"] + 60, abs=5)
    two = ask(server, "two", previous_response_id=one.id)
    (n_one, tenant, until_s), (n_two, same, until_2_s) = server.engine.pins
    assert (n_one, n_two) == (one.usage.total_tokens, two.usage.total_tokens)
    assert tenant == same != ""
    assert until_s == pytest.approx(until_2_s, abs=0.5)
    call(server, "POST", f"conversations/{name}/pin", json={"ttl_s": 0})
    assert server.engine.pins[-1][2] == 0
    ask(server, "three", previous_response_id=two.id)
    assert len(server.engine.pins) == 3, "not pinned any more"
    for body in ({}, {"ttl_s": -1}, {"ttl_s": 1e9}, {"ttl_s": "1"}, {"ttl_s": 1, "x": 1}):
        answer = call(server, "POST", f"conversations/{name}/pin", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("ttl_s", "x")


def test_deleted_is_gone(server: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    secret = "The treasure lies under the third oak"
    ids = b"".join(i.to_bytes(4, "little") for i in secret.encode())
    first = ask(server, secret)
    second = ask(server, "two", previous_response_id=first.id)
    assert secret.encode() in file.read_bytes()
    assert ids in file.read_bytes()
    server.client(KEYS[0]).responses.delete(second.id)
    assert server.engine.forgotten[-1][2] == first.usage.total_tokens - 1, "what the first needs"
    third = ask(server, "three", conversation=first.conversation.id)
    assert "two" not in prompt(server)
    name = third.conversation.id
    assert call(server, "DELETE", f"conversations/{name}").json() == {
        "id": name, "object": "conversation.deleted", "deleted": True
    }  # fmt: skip
    for reply in (first, second, third):
        assert call(server, "GET", f"responses/{reply.id}").status_code == 404
        assert call(server, "DELETE", f"responses/{reply.id}").status_code == 404
    assert call(server, "GET", f"conversations/{name}").status_code == 404
    assert secret.encode() not in file.read_bytes()
    assert ids not in file.read_bytes()
    assert os.listdir(tmp_path) == ["kept.sqlite"], "nor in a journal"
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (0,), "nor hashes of it"


def test_tenants_do_not_see_each_other(server: Any) -> None:
    reply = ask(server, "one")
    name = reply.conversation.id
    attempts = [
        ("GET", "responses/{}", reply.id, None),
        ("DELETE", "responses/{}", reply.id, None),
        ("GET", "conversations/{}", name, None),
        ("DELETE", "conversations/{}", name, None),
        ("POST", "conversations/{}/fork", name, {}),
        ("POST", "conversations/{}/pin", name, {"ttl_s": 1}),
        ("GET", "conversations?after={}", name, None),
        ("GET", "explain/{}", reply.id, None),
    ]
    for method, path, known, body in attempts:
        answers = []
        for tried in (known, known[:-6] + "abcdef"):
            answer = call(server, method, path.format(tried), KEYS[1], json=body)
            answers.append((answer.status_code, answer.text.replace(tried, "ID")))
        assert answers[0] == answers[1], path
        assert answers[0][0] == 404
    for field, value in (("previous_response_id", reply.id), ("conversation", name)):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(server, "x", KEYS[1], **{field: value})
        assert caught.value.param == field
    fork = {"response_id": reply.id}
    own = ask(server, "own", KEYS[1]).conversation.id
    assert call(server, "POST", f"conversations/{own}/fork", KEYS[1], json=fork).status_code == 404
    assert [c["id"] for c in conversations(server, KEYS[1])["data"]] == [own]
    assert ask(server, "two", previous_response_id=reply.id).status == "completed"


@pytest.mark.parametrize("sealer", [Checked(), Encrypted(b"k" * 32)], ids=["plain", "encrypted"])
def test_a_restart_keeps_them(begin: Any, tmp_path: Path, sealer: Sealer) -> None:
    file = tmp_path / "kept.sqlite"
    with begin(file, sealer) as server:
        first = ask(server, "A secret word", metadata={"a": "secret name"})
        pin = {"ttl_s": 1000}
        call(server, "POST", f"conversations/{first.conversation.id}/pin", json=pin)
    content = file.read_bytes()
    assert (b"A secret word" in content) == isinstance(sealer, Checked)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with begin(file, sealer) as server:
        [(n_tokens, _, until_s)] = server.engine.pins
        assert n_tokens == first.usage.total_tokens
        assert until_s == pytest.approx(time.monotonic() + 1000, abs=60)
        assert server.client(KEYS[0]).responses.retrieve(first.id).to_dict() == first.to_dict()
        [listed] = conversations(server)["data"]
        assert (listed["id"], listed["turns"]) == (first.conversation.id, 1)
        second = ask(server, "two", previous_response_id=first.id)
        assert server.engine.prompts[0][: first.usage.total_tokens - 1] == tuple(
            b"<user>A secret word<assistant>Yes."
        )
        assert second.conversation.id == first.conversation.id
        assert len(server.engine.pins) == 2, "the pin outlives the server too"


def test_two_servers_on_one_file(begin: Any, tmp_path: Path) -> None:
    with begin(tmp_path / "kept.sqlite") as one, begin(tmp_path / "kept.sqlite") as other:
        first = ask(one, "one")
        second = ask(other, "two", previous_response_id=first.id)
        assert prompt(other) == "<user>one<assistant>Yes.<user>two<assistant>"
        call(one, "DELETE", f"conversations/{second.conversation.id}")
        assert call(other, "GET", f"responses/{second.id}").status_code == 404


def test_a_damaged_file_is_moved_aside(begin: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    with begin(file) as server:
        first = ask(server, "one")
    file.write_bytes(os.urandom(20_000))
    with begin(file) as server:
        assert call(server, "GET", f"responses/{first.id}").status_code == 404
        second = ask(server, "two")
        assert second.store
        with open(file, "r+b") as opened:  # and while it is used
            opened.write(os.urandom(file.stat().st_size))
        third = ask(server, "three")
        assert call(server, "GET", f"responses/{third.id}").status_code == 200
    assert (tmp_path / "kept.damaged").exists()


def test_a_flipped_bit_is_not_gone_on_from(begin: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    with begin(file) as server:
        first = ask(server, "one")
    with sqlite3.connect(file) as db:
        [(tokens,)] = db.execute("SELECT tokens FROM responses").fetchall()
        db.execute("UPDATE responses SET tokens = ?", (tokens[:-1] + bytes([tokens[-1] ^ 1]),))
    db.close()
    with begin(file) as server, pytest.raises(openai.NotFoundError):
        ask(server, "two", previous_response_id=first.id)


def test_a_store_that_cannot_be_written_stops_no_answer(begin: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.sqlite"
    with begin(file) as server:
        first = ask(server, "one")
        with sqlite3.connect(file) as db:
            db.execute("DROP TABLE responses")
        db.close()
        reply = ask(server, "two")
        assert (reply.status, reply.store, reply.conversation) == ("completed", False, None)
        answer = call(server, "GET", f"responses/{first.id}")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "store_unavailable"


def test_a_place_that_cannot_be_used_stops_no_server(begin: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with begin(tmp_path / "file" / "kept.sqlite") as server:
        first = ask(server, "one")
        assert first.store
        ask(server, "two", previous_response_id=first.id)
        assert prompt(server) == "<user>one<assistant>Yes.<user>two<assistant>"


KILLED = """
import os, sys, time
from pathlib import Path
from holdover.server.sealing import Checked
from holdover.server.store import Conversation, Store, StoredResponse
store = Store(Path(sys.argv[1]), Checked(), most_responses=10_000, most_bytes=1 << 28)
n = 0
while True:
    c = Conversation(f"conv_{os.getpid()}_{n}", "t", time.time(), time.time())
    store.put(StoredResponse(f"resp_{os.getpid()}_{n}", "t", c.id, None, 1, 1, tuple(range(500)),
        [{"role": "user", "content": "x" * 2000}], "", "", "", {"n": n}), c)
    print(c.id, flush=True)
    if n % 3 == 2:
        store.delete_conversation("t", f"conv_{os.getpid()}_{n - 2}")
    n += 1
"""


def test_kill_9_leaves_whole_conversations(tmp_path: Path) -> None:
    from holdover.server.store import Store

    file = tmp_path / "kept.sqlite"
    told = []
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(file)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        told += [writer.stdout.readline().decode().strip() for _ in range(4)]
        writer.kill()
        writer.communicate()
    store = Store(file, Checked(), most_responses=10_000, most_bytes=1 << 28)
    found = store.conversations("t", None, 10_000, False)
    assert all(store.response("t", str(one.last)) is not None for one in found)
    deleted = {name for name in told if name.endswith("_0")}
    assert {name for name in told if not name.endswith(("_0", "_1"))} <= {one.id for one in found}
    assert len(found) >= len(told) - 2 * len(deleted)
    store.close()


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    import time

    from holdover.server.store import Conversation, Store, StoredResponse

    store = Store(tmp_path / "kept.sqlite", Checked(), most_responses=3, most_bytes=100_000)

    def put(name: str, n_chars: int = 10, parent: str | None = None) -> None:
        made = Conversation(f"conv_{name}", "t", time.time(), time.time())
        messages = [{"role": "user", "content": "x" * n_chars}]
        turn = StoredResponse(name, "t", made.id, parent, 1, 1, (1, 2), messages, "", "", "", {})
        store.put(turn, made)

    for name in "abc":
        put(name)
    put("d", parent="a")  # goes on from a, which is used by that
    assert [store.response("t", name) is not None for name in "abcd"] == [True, False, True, True]
    assert store.conversation("t", "conv_b") is None
    put("e", n_chars=99_800)
    assert [store.response("t", name) is not None for name in "acde"] == [False] * 3 + [True]
    put("f", n_chars=200_000)
    assert store.response("t", "f") is not None, "the last one stays, whatever its size"
    store.close()


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": "x", "size": 1}]}, "input[0].size"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    ({"input": "\ud800"}, "input"),
    ({"input": "x", "model": None}, "model"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
    ({"input": "x", "tool_choice": "required"}, "tool_choice"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "truncation": "auto"}, "truncation"),
    ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning"),
    ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text"),
    ({"input": "x", "include": ["message.output_text.logprobs"]}, "include"),
    ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
    ({"input": "x", "n": 2}, "n"),
    ({"input": "x", "max_tokens": 5}, "max_tokens"),
    ({"input": "x", "messages": []}, "messages"),
    ({"input": "x", "temprature": 0}, "temprature"),
    ({"input": "x", "temperature": "0"}, "temperature"),
    ({"input": "x", "temperature": -1}, "temperature"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "x", "max_output_tokens": 99999}, "max_output_tokens"),
    ({"input": "x" * 5000}, "input"),
    ({"input": "x", "store": 1}, "store"),
    ({"input": "x", "explain": "yes"}, "explain"),
    ({"input": "x", "metadata": {"a": 1}}, "metadata"),
    ({"input": "x", "metadata": {"a" * 65: "x"}}, "metadata"),
    ({"input": "x", "metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"input": "x", "conversation": 5}, "conversation"),
    ({"input": "x", "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
    ({"input": "x", "stream_options": {}}, "stream_options"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[f"{i}-{p}" for i, (_, p) in enumerate(BAD)])
def test_refusals(plain: Any, body: dict[str, Any], param: str) -> None:
    raw = json.dumps({"model": plain.model, **body})
    headers = {"Content-Type": "application/json"}
    answer = plain.http.post("/v1/responses", content=raw, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param.split("[")[0] in error["message"] or "prompt" in error["message"]


def test_what_asks_for_nothing_is_served(plain: Any) -> None:
    reply = plain.client().responses.create(
        model=plain.model, input="x", tools=[], tool_choice="auto", background=False,
        truncation="disabled", reasoning={"effort": None}, text={"format": {"type": "text"}},
        include=[], parallel_tool_calls=True, service_tier="auto", top_logprobs=0,
    )  # fmt: skip
    assert reply.status == "completed"
