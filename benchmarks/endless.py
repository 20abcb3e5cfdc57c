"""A conversation far beyond a model's context, in fixed bytes: what an imposed window costs.

    python benchmarks/endless.py [--tokens 100000] [--scored 8192] [--window 1024] [--sinks 4]
                                 [--kv bf16] [--ways places,absolute,none] [--model smollm2]

One text is fed through the cache that serves, token by token as far as the cache can tell, with its
beginning once more at its end. Printed is the perplexity of both, which are the same tokens, their
ratio, and the most KV bytes that were held. The ways:

    places    sinks are met from a place among what is kept (StreamingLLM): what is served
    absolute  sinks are met from the position in the whole text
    none      no sinks, and a window that is longer by as many
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import replace

import torch

from holdover.config import Config
from holdover.engine.planning import Planned, plan_serving
from holdover.geometry.base import read_geometry
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.models._blueprint import Blueprint
from holdover.models._native import load_native
from holdover.models.base import Model, load_model
from holdover.quality.forced import ForcedCache
from holdover.quality.text import text_of
from holdover.text.tokenizer import Tokenizer, load_tokenizer

WAYS = ("places", "absolute", "none")
STEP_TOKENS = 128


def load(planned: Planned, absolute: bool) -> Model:
    """The plan's model; with `absolute`, one whose sinks are met from any distance."""
    checkpoint, geometry = planned.checkpoint, planned.geometry
    if absolute:
        trained = replace(read_geometry(checkpoint.config), max_context_tokens=2**31 - 1)
        sinks = planned.config.sinks or 0
        far = ImposedWindow(trained.max_context_tokens - sinks, sinks)
        geometry = with_window(trained, far)
    if planned.blueprint is None:
        return load_model(checkpoint, geometry, planned.dtype)
    native, element = planned.blueprint.native, planned.blueprint.element
    blueprint = Blueprint.of(native, geometry, element)
    return load_native(checkpoint, blueprint, planned.dtype, planned.limits)


def feed(cache: ForcedCache, tokens: list[int], n_scored: int) -> tuple[float, float, int]:
    """Perplexity of the first and of the last `n_scored` tokens, and the most bytes held."""
    sums, counts, most_bytes = [0.0, 0.0], [0, 0], 0
    sequence, began_s = cache.open(tokens), time.monotonic()
    for start in range(0, len(tokens) - 1, STEP_TOKENS):
        part = tokens[start : min(start + STEP_TOKENS, len(tokens) - 1)]
        ends = start < n_scored, start + len(part) >= len(tokens) - n_scored
        logits = cache.feed([(sequence, part)], len(part) if any(ends) else 0)
        most_bytes = max(most_bytes, cache.manager.held_bytes)
        for end in (0, 1):
            if ends[end]:
                following = torch.tensor(tokens[start + 1 : start + 1 + len(part)])
                loss = torch.nn.functional.cross_entropy(logits, following, reduction="sum")
                sums[end] += float(loss)
                counts[end] += len(part)
        if sys.stderr.isatty():
            done = start + len(part)
            rate = done / (time.monotonic() - began_s)
            print(f"\r{done:,} of {len(tokens):,}, {rate:.0f} tokens/s ", end="", file=sys.stderr)
    cache.close(sequence)
    first, last = (math.exp(total / n) for total, n in zip(sums, counts, strict=True))
    return first, last, most_bytes


def planned_for(way: str, asked: argparse.Namespace) -> Planned:
    window, sinks = asked.window, asked.sinks
    if way == "none":
        window, sinks = window + sinks, 0
    config = Config(
        model=asked.model, kv=asked.kv, window=window, sinks=sinks, max_context=asked.tokens,
        step_tokens=STEP_TOKENS, max_sequences=STEP_TOKENS, kv_memory="256MiB",
        threads=asked.threads,
    )  # fmt: skip
    return plan_serving(config)


def text_tokens(tokenizer: Tokenizer, asked: argparse.Namespace) -> tuple[str, list[int]]:
    """As many as asked for, the first of them again at the end; a short text comes again."""
    text = text_of(None, asked.tokens)
    found = tokenizer.encode(text.characters, add_special_tokens=False)
    body = asked.tokens - asked.scored
    found = (found * math.ceil(body / len(found)))[:body]
    first = list(tokenizer.prefix_ids)
    return text.name, [*first, *found, *found[: asked.scored]][: asked.tokens + len(first)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--scored", type=int, default=8192)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", default=",".join(WAYS))
    asked = parser.parse_args()
    for number, way in enumerate(asked.ways.split(",")):
        if way not in WAYS:
            parser.error(f"--ways: there is no {way}; there are {', '.join(WAYS)}")
        planned = planned_for(way, asked)
        tokenizer = load_tokenizer(planned.checkpoint)
        torch.set_num_threads(planned.threads)
        name, tokens = text_tokens(tokenizer, asked)
        if number == 0:
            print(
                f"{planned.model_name}, made for {planned.geometry.max_context_tokens:,} tokens; "
                f"KV {asked.kv}; {len(tokens):,} tokens of {name}; window {asked.window}, sinks "
                f"{asked.sinks}\nway        first {asked.scored:,}  last {asked.scored:,}  ratio  "
                "most held bytes"
            )
        cache = ForcedCache.of(planned, load(planned, way == "absolute"), tokenizer)
        first, last, most_bytes = feed(cache, tokens, asked.scored)
        bound = planned.layout.peak_blocks(planned.limits.max_context_tokens, STEP_TOKENS)
        assert most_bytes <= planned.layout.held_bytes(bound), "more than was planned"
        print(
            f"{way:<10} {first:>11.3f} {last:>11.3f} {last / first:>6.3f}  {most_bytes:>15,}",
            flush=True,
        )


if __name__ == "__main__":
    main()
