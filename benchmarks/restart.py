"""The next turn of conversations after the server was stopped and started again.

    python benchmarks/restart.py [--conversations 8] [--words 1450] [--rounds 2] [--kill]
        [ARGUMENTS OF holdover serve ...]

Each round: a server with a disk tier answers the first turns and is stopped; one on the same
directory gets the second turns (restarted), and one on an empty directory the same (cold). Printed
are the times to the first token, and the restarted median as a share of the cold one. With --kill
the first server gets no time to end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

from server_process import Server, serving

from holdover.bench.client import Sample
from holdover.bench.load import Target
from holdover.bench.prompts import prompt_text
from holdover.bench.run import Session, connect
from holdover.errors import HoldoverError

ANSWER_TOKENS, NEXT_WORDS = 32, 32
START_LIMIT_S = 120.0
Messages = list[dict[str, str]]


def serve(directory: str, extra: list[str], grace_s: float) -> str:
    holdover = Path(sys.executable).with_name("holdover")
    own = ["serve", "--port", "{port}", "--tiers", f"disk:{directory}:8GiB"]
    return shlex.join([str(holdover), *own, "--grace-s", str(grace_s), *extra])


async def turns(server: Server, conversations: list[Messages]) -> list[Sample]:
    """Send each conversation, one after the other, and add the answer to it."""
    target = Target(server.url)
    samples = []
    async with connect(target, 1) as session:
        await ask(session, [{"role": "user", "content": "Say hello."}])  # what is made once
        for messages in conversations:
            samples.append(await ask(session, messages))
            messages.append({"role": "assistant", "content": samples[-1].text})
    return samples


async def ask(session: Session, messages: Messages) -> Sample:
    body = session.target.body(messages, ANSWER_TOKENS, session.model, seed=0)
    sample = await session.send(body)
    if sample.error is not None:
        raise SystemExit(f"{sample.error}: {sample.error_detail}")
    return sample


def measure(options: argparse.Namespace, extra: list[str], round_: int) -> tuple[list[float], ...]:
    conversations: list[Messages] = [
        [{"role": "user", "content": prompt_text(round_, f"restart/{i}", options.words)}]
        for i in range(options.conversations)
    ]
    found = []
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
        grace_s = 0.0 if options.kill else 60.0
        first = serve(kept, extra, 30.0)
        ready = "http://127.0.0.1:{port}/health"
        with serving(first, ready, {}, START_LIMIT_S, grace_s) as server:
            asyncio.run(turns(server, conversations))
            if options.kill:
                time.sleep(2)  # what a conversation that idles has
        for i, messages in enumerate(conversations):
            messages.append({"role": "user", "content": prompt_text(i, "next", NEXT_WORDS)})
        answers = []
        for directory in (kept, empty):
            asked = [list(messages) for messages in conversations]
            with serving(serve(directory, extra, 1.0), ready, {}, START_LIMIT_S) as server:
                samples = asyncio.run(turns(server, asked))
            found.append([1000 * (sample.ttft_s or 0.0) for sample in samples])
            answers.append([sample.text for sample in samples])
            shown = [sample.cached_tokens for sample in samples]
            print(f"  cached tokens: {shown} of {[s.prompt_tokens for s in samples]}")
        n_equal = sum(a == b for a, b in zip(*answers, strict=True))
        print(f"  answers equal to the cold ones: {n_equal} of {len(conversations)}")
    return tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--words", type=int, default=1450)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    options, extra = parser.parse_known_args()
    restarted: list[float] = []
    cold: list[float] = []
    for round_ in range(options.rounds):
        print(f"round {round_ + 1}, load {os.getloadavg()[0]:.1f}")
        warm_ms, cold_ms = measure(options, extra, round_)
        restarted += warm_ms
        cold += cold_ms
    for name, values in (("restarted", restarted), ("cold", cold)):
        middle = statistics.median(values)
        print(f"{name:10} first token p50 {middle:7.1f} ms ({min(values):.1f}-{max(values):.1f})")
    share = statistics.median(restarted) / statistics.median(cold)
    print(f"restarted / cold: {100 * share:.1f} %")


if __name__ == "__main__":
    try:
        main()
    except HoldoverError as error:
        sys.exit(str(error))
