"""How many requests a minute `holdover simulate` replays, and what of the manager that is.

    python benchmarks/simulation.py TRACE --kv-memory 16GiB,200GiB [--block-tokens 512] [--profile]

The model is Llama 3 8B. Times are CPU time of the one thread, without reading the trace. The
checksum stands for everything that came of it: equal before and after a change that is only faster.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import pstats
import time
from dataclasses import asdict

from holdover.cache.tiers._open import parse_tiers
from holdover.plan.sizing.accelerated import find_device
from holdover.plan.sizing.question import Question
from holdover.simulate.ask import default_block_tokens
from holdover.simulate.costs import LinkCosts, StepCosts
from holdover.simulate.model import read_subject
from holdover.simulate.run import Setup, simulate
from holdover.simulate.trace import read_trace
from holdover.units import parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--kv-memory", default="16GiB,200GiB")
    parser.add_argument("--block-tokens", type=int)
    parser.add_argument("--tiers", action="append", default=[])
    parser.add_argument("--repeat", type=int, default=1, help="the fastest of so many")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    trace = read_trace(asked.trace)
    block_tokens = asked.block_tokens or default_block_tokens(trace)
    subject = read_subject(asked.model, Question(), "bf16", block_tokens)
    costs = StepCosts.of(find_device("A100 80GB"), subject.weights, None, None)
    setup = Setup(subject, costs, LinkCosts.of(None, None), tuple(parse_tiers(asked.tiers)))
    profile = cProfile.Profile() if asked.profile else None
    for size in asked.kv_memory.split(","):
        best_s = float("inf")
        for _ in range(asked.repeat):
            gc.collect()
            begin_s = time.thread_time()
            if profile is not None:
                profile.enable()
            found = simulate(trace, setup, parse_bytes(size, ""), size, lambda done, total: None)
            if profile is not None:
                profile.disable()
            best_s = min(best_s, time.thread_time() - begin_s)
        said = hashlib.blake2b(repr(asdict(found)).encode(), digest_size=4).hexdigest()
        print(
            f"{trace.name} {size:>7} {block_tokens:4} tokens a block"
            f"  {found.requests / best_s * 60:9,.0f} requests/min  {best_s:6.2f} s"
            f"  hits {found.hit_rate:6.1%}  evicted {found.evicted_blocks:9,}  checksum {said}"
        )
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
