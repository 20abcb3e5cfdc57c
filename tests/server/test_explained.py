"""How much is reused, and why no more: a real model where reuse matters, over HTTP."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdover.cache.costs import Decision
from holdover.cache.evictions import Eviction
from holdover.cache.explain import Reuse
from holdover.config import Config
from holdover.engine.build import build_engine
from holdover.engine.planning import plan_serving
from holdover.server.archive import Archive
from holdover.server.gate import tenant_of
from holdover.server.sealing import Checked

from .scripted import ByteTokenizer, ScriptedEngine

KEYS = ("sk-anna", "sk-bert", "sk-docs")
LONG = "Tell me about " + ", ".join(f"the number {i}" for i in range(60))


@pytest.fixture(scope="module")
def real(serving: Any) -> Iterator[Any]:
    config = Config(model="smollm2", kv_memory="64MiB", api_keys=KEYS, threads=1)
    planned = plan_serving(config)
    engine = build_engine(planned)
    limit = planned.limits.max_context_tokens
    with serving(engine, engine.tokenizer, config, planned.model_name, limit) as server:
        yield server


@contextlib.contextmanager
def small(serving: Any, *tiers: str) -> Iterator[Any]:
    """Room for one of the long prompts in the arena, and for more in a tier."""
    config = Config(
        model="smollm2", kv_memory="12MiB", tiers=tiers, threads=1, log_requests=True,
        block_tokens=16, max_context=440, max_sequences=1, step_tokens=128, api_keys=KEYS,
    )  # fmt: skip
    planned = plan_serving(config)
    engine = build_engine(planned)
    limit = planned.limits.max_context_tokens
    with serving(engine, engine.tokenizer, config, planned.model_name, limit) as server:
        server.http.headers["Authorization"] = f"Bearer {KEYS[0]}"
        yield server


def ask(server: Any, text: Any, key: str = KEYS[0], **options: Any) -> Any:
    options = {"max_output_tokens": 12, "temperature": 0, **options}
    return server.client(key).responses.create(model=server.model, input=text, **options)


def chat(server: Any, text: str, key: str = KEYS[0], **options: Any) -> Any:
    options = {"max_tokens": 4, "temperature": 0, **options}
    return server.client(key).chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": text}],
        extra_body={"explain": True},
        **options,
    )


def get(server: Any, path: str, key: str = KEYS[0]) -> Any:
    answer = server.get(f"/v1/{path}", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def explained(server: Any, name: str, key: str = KEYS[0]) -> Any:
    return get(server, f"explain/{name}", key)


def computed(reply: Any) -> int:
    """Tokens of the turn that were run; the last one of an answer never is."""
    return reply.usage.total_tokens - 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_output_tokens": 40},  # ends by itself, with an end token
        {"max_output_tokens": 5},  # cut off
        {"temperature": 1.6, "max_output_tokens": 40, "extra_body": {"seed": 5}},
    ],
    ids=["whole", "cut", "wild"],
)
def test_the_next_turn_computes_only_what_is_new(real: Any, options: dict[str, Any]) -> None:
    last = ask(real, f"Count from one to twenty in words. {options}", **options)
    for text in ("And now in French?", "Thanks! 🙂", "Bye."):
        reply = ask(real, text, previous_response_id=last.id, **options)
        n_new = reply.usage.input_tokens - computed(last)
        assert reply.usage.input_tokens_details.cached_tokens == computed(last)
        assert n_new < 30, "the earlier turns are in the prompt once, and only once"
        told = explained(real, reply.id)
        assert told["reason"] == "new"
        assert told["history"].startswith("continued")
        last = reply


def test_rendering_a_wild_answer_again_gives_other_tokens(real: Any) -> None:
    """What `test_the_next_turn_computes_only_what_is_new` would be without kept tokens."""
    wild = {"temperature": 1.6, "max_output_tokens": 60, "extra_body": {"seed": 11}}
    first = ask(real, "Write something odd.", **wild)
    sent = [
        {"role": "user", "content": "Write something odd."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "More."},
    ]
    again = ask(real, sent, store=False)
    assert again.usage.input_tokens_details.cached_tokens < computed(first)
    assert explained(real, again.id)["reason"] == "differs"
    named = ask(real, "More.", previous_response_id=first.id)
    assert named.usage.input_tokens_details.cached_tokens == computed(first)


def test_a_stop_string_is_cut_from_what_is_gone_on_from(real: Any) -> None:
    first = ask(real, "Count from one to ten.", max_output_tokens=40)
    word = first.output_text.split()[3]
    cut = ask(real, "Count from one to ten.", max_output_tokens=40, extra_body={"stop": [word]})
    assert word not in cut.output_text
    second = ask(real, "Go on.", previous_response_id=cut.id)
    n_cached = second.usage.input_tokens_details.cached_tokens
    assert cut.usage.input_tokens < n_cached <= computed(cut)
    assert explained(real, second.id)["history"].startswith("continued")


def test_streamed_turns_go_on_alike(real: Any) -> None:
    *_, end = ask(real, "Name a fruit, then stop.", stream=True)
    *_, last = ask(real, "Another.", previous_response_id=end.response.id, stream=True)
    cached = last.response.usage.input_tokens_details.cached_tokens
    assert cached == end.response.usage.total_tokens - 1


def test_a_branch_shares_what_is_before_it(real: Any) -> None:
    first = ask(real, "Name a river of Asia.")
    name = first.conversation.id
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    fork = real.post(f"/v1/conversations/{name}/fork", json={}, headers=headers).json()
    for options in ({"conversation": name}, {"conversation": fork["id"]}):
        reply = ask(real, "And one of Africa.", **options)
        assert reply.usage.input_tokens_details.cached_tokens >= computed(first)


def test_a_deleted_conversation_is_not_in_the_cache(real: Any) -> None:
    text = "My password is swordfish; remember it."
    first = ask(real, text)
    other = ask(real, "Remember the number 7; it is mine.")
    found = get(real, f"conversations/{first.conversation.id}")
    assert found["reusable_tokens"] == computed(first)
    assert found["bytes"]["arena"] > 0
    kept_of, tenant = real.engine.kept, tenant_of(KEYS[0])
    mine = real.tokenizer.encode_chat([{"role": "user", "content": text}])
    n_before = kept_of(tuple(mine), tenant).result().reusable_tokens
    assert n_before >= len(mine) - 1
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    real.http.request("DELETE", f"/v1/conversations/{first.conversation.id}", headers=headers)
    assert kept_of(tuple(mine), tenant).result().reusable_tokens < 32, "but the system prompt"
    kept = get(real, f"conversations/{other.conversation.id}")
    assert kept["reusable_tokens"] == computed(other)


def test_reasons(real: Any) -> None:
    paris = chat(real, "The capital of France is Paris, is it not?")
    assert paris.holdover["reason"] in ("nothing", "differs", "new")
    again = chat(real, "The capital of France is Paris, is it not?")
    assert again.holdover["reason"] == "all"
    assert again.holdover["reused_tokens"] == again.usage.prompt_tokens - 1
    assert again.holdover["from"] == {"arena": again.usage.prompt_tokens - 1}
    assert again.holdover["prompt_end_was_kept"]
    assert "last hidden state of the same prompt was kept" in again.holdover["text"]
    told = real.get("/metrics", headers={"Authorization": f"Bearer {KEYS[0]}"}).text
    assert f"holdover_kept_prompt_ends_total {real.engine.stats().kept_prompt_ends:.1f}" in told
    assert real.engine.stats().kept_prompt_ends > 0
    lyon = chat(real, "The capital of France is Lyon, is it not?").holdover
    assert lyon["reason"] == "differs"
    assert lyon["text"].endswith(f"at token {lyon['position']}: ' Lyon' instead of ' Paris'")
    assert lyon["text_before"].endswith("The capital of France is")
    assert explained(real, again.id) == again.holdover
    assert explained(real, again._request_id) == again.holdover


def test_another_keys_prefix_is_none(real: Any) -> None:
    chat(real, "What is it that only Anna knows?")
    told = chat(real, "What is it that only Anna knows?", KEYS[1]).holdover
    assert told["reused_tokens"] == 0
    assert told["reason"] == "nothing"
    assert "--share-prefixes" in told["text"]
    assert "Anna" not in str(told)


def test_explained_in_streams_and_completions(real: Any) -> None:
    for usage in (None, {"include_usage": True}):
        chunks = list(chat(real, "Hello there", stream=True, stream_options=usage))
        assert chunks[-1].holdover["prompt_tokens"] > 10
        assert all("holdover" not in chunk.to_dict() for chunk in chunks[:-1])
    reply = real.client(KEYS[0]).completions.create(
        model=real.model, prompt=["One two", "Three four"], max_tokens=2,
        extra_body={"explain": True},
    )  # fmt: skip
    assert len(reply.holdover["other_prompts"]) == 1
    assert explained(real, reply.id) == reply.holdover
    *_, last = ask(real, "Hello there", stream=True, extra_body={"explain": True})
    assert last.response.holdover["reason"] in ("all", "differs", "new")


def test_evicted_when_and_for_whom(serving: Any) -> None:
    with small(serving) as server:
        chat(server, LONG)
        second = chat(server, "Now " + LONG)
        mine = chat(server, LONG).holdover
        assert mine["reason"] == "evicted"
        assert "s before, for request " + second.id in mine["text"]
        chat(server, "Now " + LONG, KEYS[1])
        told = chat(server, LONG).holdover
        assert told["reason"] == "evicted"
        assert told["text"].endswith("for a request of another API key")


def test_loaded_from_a_tier(serving: Any, capsys: Any) -> None:
    with small(serving, "ram:64MiB") as server:
        first = ask(server, LONG)
        chat(server, "Now " + LONG)
        found = get(server, f"conversations/{first.conversation.id}")
        assert found["bytes"]["ram"] > found["bytes"].get("arena", 0)
        assert found["reusable_tokens"] == computed(first)
        second = ask(server, "Go on", previous_response_id=first.id)
        told = explained(server, second.id)
        assert told["from"]["ram"] > 100
        assert told["reused_tokens"] == computed(first)
        assert server.metric('holdover_tier_loaded_blocks_total{tier="ram"}') > 5
        assert server.metric('holdover_tier_stored_blocks_total{tier="ram"}') > 5
        assert server.metric('holdover_tier_cap_bytes{tier="ram"}') > 60 << 20
        assert server.metric('holdover_tier_trouble{tier="ram"}') == 0
        loaded = server.metric('holdover_reused_tokens_total{place="ram"}')
        assert loaded == told["from"]["ram"]
        assert server.metric('holdover_reuse_ends_total{reason="new"}') >= 1
        lines = capsys.readouterr().err.splitlines()
        [line] = [line for line in lines if line.startswith(second.id)]
        assert f"ram {told['from']['ram']}; new), output" in line


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_conversation_outlives_its_server(serving: Any, tmp_path: Path, encrypted: bool) -> None:
    """Engine and server are new; the folder of the disk tier is all that they share."""
    tier = f"disk:{tmp_path}/kept:256MiB"
    if encrypted:
        key = tmp_path / "key"
        key.write_bytes(b"k" * 32)
        key.chmod(0o600)
        tier += f":key={key}"
    with small(serving, tier) as server:
        first = ask(server, "My dog is called Barnaby, and he is four years old.")
        server.engine.shutdown(5.0)
    files = list((tmp_path / "kept").iterdir())
    assert any(file.name.startswith("conversations") for file in files)
    assert any(b"Barnaby" in file.read_bytes() for file in files) == (not encrypted)
    with small(serving, tier) as server:
        found = get(server, f"conversations/{first.conversation.id}")
        assert found["reusable_tokens"] == computed(first)
        assert set(found["bytes"]) == {"disk"}
        second = ask(server, "How old is he?", previous_response_id=first.id)
        assert second.usage.input_tokens_details.cached_tokens == computed(first)
        assert explained(server, second.id)["from"] == {"disk": computed(first)}
        headers = {"Authorization": f"Bearer {KEYS[0]}"}
        name = first.conversation.id
        server.http.request("DELETE", f"/v1/conversations/{name}", headers=headers)
        server.engine.shutdown(5.0)
    content = b"".join(file.read_bytes() for file in (tmp_path / "kept").iterdir())
    assert b"Barnaby" not in content
    tokens = server.tokenizer.encode(" dog is called Barnaby, and he is four", False)
    assert b"".join(i.to_bytes(4, "little") for i in tokens) not in content


EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
EXAMPLES = [
    pytest.param(code, output, id=f"{page}-{number}")
    for page in ("README.md", "docs/api.md")
    for number, (code, output) in enumerate(EXAMPLE.findall((ROOT / page).read_text()))
]


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_the_docs_examples_print_what_is_shown(
    real: Any, capsys: Any, code: str, output: str
) -> None:
    assert code.count("http://127.0.0.1:8000") == code.count('"none"') == 1
    code = code.replace("http://127.0.0.1:8000", real.url).replace('"none"', repr(KEYS[2]))
    exec(compile(code, "example", "exec"), {})
    assert capsys.readouterr().out == output


def test_another_template_is_named(serving: Any, real: Any, tmp_path: Path) -> None:
    tokenizer = real.tokenizer
    source = tokenizer.chat_template.source.replace("helpful AI", "grumpy AI")
    changed = replace(tokenizer, chat_template=replace(tokenizer.chat_template, source=source))
    config, file = Config(api_keys=KEYS, grace_s=0.2), tmp_path / "kept.sqlite"

    def over(which: Any) -> Any:
        archive = Archive(file, Checked(), 2)
        return serving(real.engine, which, config, real.model, archive=archive)

    with over(tokenizer) as server:
        first = ask(server, "Name a metal.")
        chat(server, "Name a gas.")
    with over(changed) as server:
        second = ask(server, "Another.", previous_response_id=first.id)
        told = explained(server, second.id)
        assert told["reason"] == "template_changed"
        assert "template" in told["text"]
        assert told["history"].startswith("rendered anew: the chat template has changed")
        assert chat(server, "Name a gas.").holdover["reason"] == "template_changed"
        assert chat(server, "Name a gas.").holdover["reason"] == "all"
        fresh = chat(server, "Name a gas that nobody has named before.").holdover
        assert fresh["reason"] != "template_changed"
    with over(tokenizer) as server:
        third = ask(server, "Another.", previous_response_id=first.id)
        assert third.usage.input_tokens_details.cached_tokens == computed(first), "a restart"


@pytest.mark.parametrize(
    ("reuse", "reason", "says"),
    [
        (Reuse(40, 8, {"arena": 8}, "new"), "new", "ends at token 8"),
        (Reuse(40, 0, {}, "no_room"), "no_room", "no room"),
        (Reuse(40, 0, {}, "failed", problem="checksum"), "failed", "checksum"),
        (
            Reuse(40, 8, {"disk": 8}, "slower", decision=Decision(0.9, 0.4)),
            "slower",
            "loading was predicted to take 0.9 s, computing 0.4 s",
        ),
        (
            Reuse(40, 0, {}, "evicted", eviction=Eviction(b"secret", 1.0, None, "")),
            "evicted",
            "for a request of another API key",
        ),
    ],
)
def test_what_a_cache_can_say(serving: Any, reuse: Reuse, reason: str, says: str) -> None:
    engine = ScriptedEngine()
    engine.reuse = lambda prompt: reuse
    with serving(engine, ByteTokenizer(), Config(grace_s=0.2)) as server:
        told = chat(server, "x" * 20).holdover
        assert told["reason"] == reason
        assert says in told["text"]
        assert told["from"] == {k: v for k, v in reuse.from_tiers.items() if v}
        assert "secret" not in str(told)
        assert server.metric(f'holdover_reuse_ends_total{{reason="{reason}"}}') == 1
    engine.shutdown(0.0)


def test_another_model_is_named(serving: Any, tmp_path: Path) -> None:
    for fingerprint, reason in (("fp_a", "nothing"), ("fp_b", "other_model")):
        engine = ScriptedEngine()
        engine.fingerprint = fingerprint
        engine.reuse = lambda prompt: Reuse(len(prompt), 0, {}, "nothing")
        archive = Archive(tmp_path / "kept.sqlite", Checked(), 1)
        with serving(engine, ByteTokenizer(), Config(grace_s=0.2), archive=archive) as server:
            assert chat(server, "the same").holdover["reason"] == reason
        engine.shutdown(0.0)


def test_shared_prefixes_do_not_show_what_others_sent(serving: Any) -> None:
    engine = ScriptedEngine()
    engine.reuse = lambda prompt: Reuse(40, 3, {"arena": 3}, "differs", ord("S"), ord("x"))
    config = Config(grace_s=0.2, api_keys=KEYS, share_prefixes=True)
    with serving(engine, ByteTokenizer(), config) as server:
        told = chat(server, "x" * 20).holdover
        assert told["text"] == "the prompt differs from what was kept at token 3"
    engine.shutdown(0.0)


def test_the_last_1024_are_known(serving: Any) -> None:
    engine = ScriptedEngine(answer=lambda prompt: b"")
    engine.reuse = lambda prompt: Reuse(40, 3, {"arena": 3}, "new")
    with serving(engine, ByteTokenizer(), Config(grace_s=0.2)) as server:
        body = {"model": server.model, "prompt": "x", "max_tokens": 1}
        names = [server.post("/v1/completions", json=body).json()["id"] for _ in range(1025)]
        assert server.get(f"/v1/explain/{names[0]}").status_code == 404
        assert server.get(f"/v1/explain/{names[1]}").status_code == 200
        assert server.get(f"/v1/explain/{names[-1]}").status_code == 200
    engine.shutdown(0.0)
