"""What a step costs besides the model: scheduler, manager, block tables, text and stats.

    python benchmarks/bookkeeping.py [--sequences 16] [--steps 2000] [--profile]

Runs the real scheduler and manager on the null arena, over a model like Gemma 3 270M (a full and a
window group), with all sequences decoding from a 1,000-token prompt. Times are CPU time of the one
thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time

import numpy as np

from holdover.cache.arena import NullArena
from holdover.cache.manager import CacheManager
from holdover.codecs.base import uniform
from holdover.engine.api import SamplingParams
from holdover.engine.runner import attention_batch
from holdover.engine.scheduler import Scheduler
from holdover.engine.sequence import Sequence
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Full, Window

PROMPT_TOKENS = 1000
TARGET_MS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    profile = cProfile.Profile() if asked.profile else None
    schedule_s, tables_s, commit_s, stats_s = measure(asked.sequences, asked.steps, profile)
    whole = schedule_s + tables_s + commit_s + stats_s
    for name, times in (
        ("schedule and reserve", schedule_s),
        ("block tables", tables_s),
        ("commit", commit_s),
        ("byte counts for stats", stats_s),
        ("whole step", whole),
    ):
        p50, p95, worst = (1e3 * np.quantile(times, q) for q in (0.5, 0.95, 1))
        print(f"{name:24}  p50 {p50:6.3f} ms   p95 {p95:6.3f} ms   worst {worst:6.3f} ms")
    mean_ms = 1e3 * float(whole.mean())
    verdict = "within" if mean_ms < TARGET_MS else "ABOVE"
    print(f"mean {mean_ms:.3f} ms a step at {asked.sequences} sequences: {verdict} {TARGET_MS} ms")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)


def measure(n: int, n_steps: int, profile: cProfile.Profile | None) -> np.ndarray:
    """Seconds of each part in each step, [parts, steps]."""
    residencies = [Full() if i % 6 == 5 else Window(512) for i in range(18)]
    layers = tuple(LayerSpec(attention_planes(1, 256), residency) for residency in residencies)
    layout = CacheLayout.of(CacheSpec.of(layers, block_tokens=16), uniform("bf16"))
    context_tokens = PROMPT_TOKENS + n_steps + 2
    blocks = layout.peak_blocks(context_tokens, step_tokens=512)
    n_sectors = layout.sectors_for([n * count for count in blocks])
    manager = CacheManager(layout, NullArena(n_sectors * layout.sector_bytes))
    scheduler = Scheduler(manager, Limits(max(n, 16), 512, context_tokens))
    rng = np.random.default_rng(0)
    for arrival in range(n):
        prompt = tuple(rng.integers(0, 1000, PROMPT_TOKENS).tolist())
        scheduler.add(Sequence.of(arrival, prompt, SamplingParams(), n_steps + 1))
    gc.collect()
    gc.freeze()  # as the engine does when it is built
    times = []
    while scheduler.has_work:
        warm = len(scheduler.running) == n and all(s.n_pending == 1 for s in scheduler.running)
        if warm and profile is not None:
            profile.enable()
        at = [time.thread_time()]
        batch = scheduler.schedule()
        assert batch is not None
        at.append(time.thread_time())
        attention_batch(batch, manager)
        at.append(time.thread_time())
        scheduler.commit(batch)
        at.append(time.thread_time())
        byte_counts = (manager.held_bytes, manager.logical_bytes, manager.cached_bytes)
        at.append(time.thread_time())
        assert byte_counts[0] > 0
        if profile is not None:
            profile.disable()
        if warm:
            times.append(np.diff(at))
        for sequence in batch.sampled:
            sequence.append(len(sequence.tokens) % 1000)
            if sequence.n_generated == sequence.max_tokens:
                scheduler.finish(sequence)
    return np.array(times).T


if __name__ == "__main__":
    main()
