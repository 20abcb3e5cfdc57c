"""Traces as they are read, and what is said of those that cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.errors import HoldoverError
from holdover.simulate.trace import Trace, TraceError, read_trace

TRACES = Path(__file__).parents[2] / "traces"
MOONCAKE = {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 9]}
REQUEST = {"t": 0.0, "in": 200, "out": 5, "p": 0, "h": [[1, 3]], "api": 2.0, "think": 0.0}
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read(folder: Path, *lines: Any) -> Trace:
    path = folder / "trace"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return read_trace(str(path))


def conversation(*requests: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "a", "block_size": 64, "requests": list(requests), **fields}


def refusal(folder: Path, *lines: Any) -> str:
    with pytest.raises(TraceError) as caught:
        read(folder, *lines)
    return str(caught.value)


def test_mooncake(tmp_path: Path) -> None:
    later = MOONCAKE | {"timestamp": 30000, "input_length": 1200, "hash_ids": [46, 47, 11]}
    found = read(tmp_path, later, "", MOONCAKE)
    assert (found.format, found.block_tokens, found.is_closed_loop) == ("mooncake", 512, False)
    assert [r.arrival_s for r in found.requests] == [27.482, 30.0], "in the order of their times"
    assert [r.prompt_tokens for r in found.requests] == [1100, 1200]
    first, second = (r.block_ids.tolist() for r in found.requests)
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert found.n_conversations == 1, "the second goes on where the first ended"
    assert found.repeats() == (2, 6)


def test_azure(tmp_path: Path) -> None:
    found = read(
        tmp_path, HEADER, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:45.6805900,8,1",
        "2023-11-16 18:15:47.68059+00:00, 9 ,0",
    )  # fmt: skip
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found.requests] == [
        (0.0, 8, 1), (1.0, 374, 44), (2.0, 9, 0),
    ]  # fmt: skip
    assert found.block_tokens is None
    assert found.repeats() == (0, 0)


def test_agents(tmp_path: Path) -> None:
    """The third request waits for both agents; their ids are the conversation's, not another's."""
    second = REQUEST | {"t": 10.0, "in": 330, "p": 2, "h": [[4, 3]], "think": 8.0}
    inner = REQUEST | {"h": [[1, 1], [70, 2]]}
    agents = [
        {"t": 40.0, "duration_ms": 28000, "requests": [inner]},
        {"t": 30.0, "duration_ms": 18000, "requests": [inner, inner | {"t": 5.0, "think": 3.0}]},
    ]
    third = REQUEST | {"t": 50.0, "in": 400, "p": 5, "h": [[9, 1]], "think": 38.0}
    found = read(tmp_path, conversation(REQUEST, second, *agents, third), conversation(REQUEST))
    assert (found.n_conversations, found.block_tokens, found.is_closed_loop) == (2, 64, True)
    waits = [r.after for r in found.requests]
    assert waits[:2] == [(), ((0, 8.0),)]
    assert waits[2:5] == [((1, 0.0),), ((1, 0.0),), ((3, 3.0),)], "agents begin when called"
    assert waits[5] == ((1, 0.0), (2, 10.0), (4, 20.0))
    ids = [r.block_ids.tolist() for r in found.requests]
    assert ids[1][:2] == ids[0][:2]
    assert ids[2][0] == ids[0][0]
    assert not set(ids[6]) & {i for some in ids[:6] for i in some}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_length": 0}, "line 2: input_length is 0; it goes from 1 to 16,777,216"),
        ({"input_length": "7"}, "line 2: input_length is '7', no whole number"),
        ({"input_length": True}, "line 2: input_length is True, no whole number"),
        ({"output_length": -1}, "line 2: output_length is -1; it goes from 0 to 16,777,216"),
        ({"timestamp": None}, "line 2: timestamp is None, no number"),
        ({"timestamp": -5}, "line 2: timestamp is -5, no time of a trace"),
        ({"hash_ids": 5}, "line 2: hash_ids is 5, no list"),
        ({"hash_ids": [1.5]}, "line 2: hash_ids holds something that is neither a whole number"),
        ({"hash_ids": [1, 2, 3, 4]}, "line 2: hash_ids has 4 ids; input_length 1100 is 3 blocks"),
    ],
)
def test_bad_lines_of_mooncake(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, MOONCAKE, MOONCAKE | change)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "line 2: [1, 2] is no object with fields"),
        ("{broken", "line 2: is no JSON"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": []}',
         "line 2: timestamp is nan, no time of a trace"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": []}', "line 2: lacks timestamp"),
    ],
)  # fmt: skip
def test_lines_that_are_no_request(tmp_path: Path, line: str, message: str) -> None:
    assert message in refusal(tmp_path, MOONCAKE, line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("yesterday,5,1", "line 2: TIMESTAMP 'yesterday' is no date and time"),
        ("2023-11-16 18:15:46,0,1", "line 2: ContextTokens is '0', no whole number from 1"),
        ("2023-11-16 18:15:46,5,x", "line 2: GeneratedTokens is 'x', no whole number from 0"),
        ("2023-11-16 18:15:46,5", "line 2: has 2 columns; 3 are needed"),
        ('2023-11-16 18:15:46,"5,1', "line 2: is no CSV"),
    ],
)
def test_bad_lines_of_azure(tmp_path: Path, line: str, message: str) -> None:
    assert message in refusal(tmp_path, HEADER, line)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([REQUEST | {"p": 1}], "p is 1; the request before has 0 blocks"),
        ([REQUEST | {"h": [[1]]}], "h holds [1], no range of ids"),
        ([REQUEST | {"h": [[1, 201]]}], "h holds [1, 201], no range of ids"),
        ([REQUEST | {"in": 100}], "in is 100, which is less than 3 blocks of 64 tokens"),
        ([REQUEST | {"think": "long"}, 5], "5 is no object with fields"),
        ([REQUEST, REQUEST | {"think": "long"}], "think is 'long', no number"),
    ],
)
def test_bad_lines_of_agents(tmp_path: Path, requests: list[Any], message: str) -> None:
    assert f"line 2: {message}" in refusal(tmp_path, conversation(REQUEST), conversation(*requests))


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    assert "is empty" in refusal(tmp_path, "", " ")
    assert "line 2: is no trace of a known format: agents' conv" in refusal(tmp_path, "", "a,b")
    assert "has no request" in refusal(tmp_path, HEADER)
    assert "has no request" in refusal(tmp_path, conversation())
    other = conversation(REQUEST, block_size=32)
    assert "block_size is 32, and 64 before" in refusal(tmp_path, conversation(REQUEST), other)
    (tmp_path / "trace").write_bytes(b"{\xff\xfe")
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "none", "no such file")):
        with pytest.raises(TraceError, match=message):
            read_trace(str(path))
    with pytest.raises(TraceError, match="line 1: is no UTF-8"):
        read_trace(str(tmp_path / "trace"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
LINES = {
    "mooncake": MOONCAKE,
    "agents": conversation(REQUEST, {"t": 9.0, "duration_ms": 3.0, "requests": [REQUEST]}, REQUEST),
}


@pytest.mark.parametrize("name", LINES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_value_is_read_or_refused_with_its_line(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One field, anywhere, becomes something else."""
    line = json.loads(json.dumps(LINES[name]))
    at: Any = line
    while True:
        key = data.draw(st.sampled_from(range(len(at)) if isinstance(at, list) else sorted(at)))
        if not (isinstance(at[key], list | dict) and at[key] and data.draw(st.booleans())):
            break
        at = at[key]
    at[key] = data.draw(VALUES)
    folder = tmp_path_factory.mktemp("trace")
    said = "line 2"
    try:
        found = read(folder, LINES[name], line)
        assert found.requests
        found.repeats()
    except HoldoverError as error:
        said = str(error)
    assert "line 2" in said


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace"
    for start in (b"", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", b'{"hash_ids"'):
        path.write_bytes(start + content)
        with pytest.raises(HoldoverError):
            read_trace(str(path))


def test_the_made_traces_are_those_of_their_script(tmp_path: Path) -> None:
    script = (TRACES / "make.py").read_text()
    (tmp_path / "make.py").write_text(script)
    subprocess.run([sys.executable, str(tmp_path / "make.py")], check=True)
    for name in ("chats.jsonl", "agents.jsonl", "azure.csv"):
        assert (tmp_path / name).read_text() == (TRACES / name).read_text(), name
        assert read_trace(str(TRACES / name)).requests
