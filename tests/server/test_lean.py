"""What makes a token cheap to send changes nothing that is sent or counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import prometheus_client
import pytest

from holdover.engine.api import Event, TokenLogprob, Usage
from holdover.server.mailbox import Mailbox
from holdover.server.metrics import Times
from holdover.server.respond import EventStream, Writer
from holdover.server.writers import ChatWriter, CompletionWriter, Head

from .scripted import ByteTokenizer

HEAD = Head(id="x-1", created=7, model='a"\\u0000"\\m\0', system_fingerprint="fp")
TEXTS = [
    "a",
    '"',
    '\\"',
    "\0",
    '"\\u0000"',
    "\x07\x1f\x7f",
    "\n\t\b\f\r",
    "é\u2028\U0001f600\ufffd",
    "",
]
WRITERS: list[Callable[[bool], Writer]] = [
    lambda logprobs: ChatWriter(HEAD, ByteTokenizer(), logprobs),
    lambda logprobs: CompletionWriter(HEAD, ByteTokenizer(), logprobs, ["", "before "]),
]


@pytest.mark.parametrize("writer", WRITERS, ids=["chat", "text"])
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_every_chunk_is_as_its_model_writes_it(
    writer: Callable[[bool], Writer], logprobs: bool, include_usage: bool
) -> None:
    said = (TokenLogprob(65, -0.5, ((66, -1.0),)),) if logprobs else ()
    events = [Event(i, text, (65,), said) for text in TEXTS for i in (0, 1)]
    events += [Event(i, "end", (65,), said, "stop", Usage(1, 2, 0)) for i in (1, 0)]
    stream = EventStream(cast(Any, None), writer(logprobs), 2, include_usage=include_usage)
    whole = writer(logprobs)
    exclude = {"holdover"} if include_usage else {"holdover", "usage"}
    for event in events:
        chunks = [piece.model_dump_json(exclude=exclude) for piece in whole.pieces(event)]
        assert stream._frames(event).decode() == "".join(f"data: {c}\n\n" for c in chunks)


def test_times_are_counted_as_prometheus_does() -> None:
    bounds = (0.01, 0.5, 1.0, 30)
    seconds = [0.0, 0.01, 0.0100001, 0.4, 0.5, 1.0, 29.0, 31.0]
    theirs = prometheus_client.CollectorRegistry()
    histogram = prometheus_client.Histogram(
        "holdover_x_seconds", "some", buckets=bounds, registry=theirs
    )
    ours, times = prometheus_client.CollectorRegistry(), Times("x", "some", bounds)
    ours.register(times)
    assert _text(ours) == _text(theirs)
    for n, value in enumerate(seconds):
        times.observe(value, n)
        for _ in range(n):
            histogram.observe(value)
    assert _text(ours) == _text(theirs)


def _text(registry: prometheus_client.CollectorRegistry) -> list[str]:
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("holdover_x_seconds_created ")]


def test_a_mailbox_wakes_the_loop_once_for_all_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    rings = 0

    async def main() -> None:
        nonlocal rings
        loop, mailbox = asyncio.get_running_loop(), Mailbox()
        wake = loop.call_soon_threadsafe

        def count(*arguments: Any) -> Any:
            nonlocal rings
            rings += 1
            return wake(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        sender = threading.Thread(
            target=lambda: [mailbox.post(loop, taken.append, i) for i in range(100)]
        )
        sender.start()
        sender.join()  # the loop is busy with this
        assert taken == []
        await asyncio.sleep(0)
        assert taken == [*range(100)]
        assert rings == 1

    asyncio.run(main())


def test_a_mailbox_loses_nothing_and_keeps_the_order() -> None:
    """Posts that come while the loop is delivering are the ones that could be missed."""
    taken: dict[int, list[int]] = {0: [], 1: []}

    async def main() -> None:
        loop, mailbox = asyncio.get_running_loop(), Mailbox()

        def send(name: int) -> None:
            for i in range(20_000):
                mailbox.post(loop, taken[name].append, i)

        await asyncio.gather(*(asyncio.to_thread(send, name) for name in taken))
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert taken[0] == taken[1] == [*range(20_000)]
