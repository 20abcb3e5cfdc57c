"""A real model served from a quantised cache: every codec answers, and a hit equals a cold run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.codecs.base import codec_names
from holdover.config import Config
from holdover.engine.planning import plan_serving
from holdover.errors import ConfigError
from holdover.kernels.native.availability import extension

from .conftest import GREEDY, Loaded, Serve

MIXED = ["k=int8,v=q5_1", "int8,v=q5_1,0-1=fp32"]
QUANTISED = [*sorted(set(codec_names()) - {"fp32", "bf16", "fp16"}), *MIXED]
PROMPT = "Monday, Tuesday, Wednesday, Thursday, Friday,"
FEW = replace(GREEDY, max_tokens=4, ignore_eos=True)
EVERY_RUN = ("fp8", "int8", "int4", "q5_1", *MIXED)  # the others share their code


@pytest.mark.parametrize(
    "codec",
    [c if c in EVERY_RUN else pytest.param(c, marks=pytest.mark.slow) for c in QUANTISED],
)
def test_a_quantised_cache_serves(smollm2: Loaded, serve: Serve, codec: str) -> None:
    # In the native decoder, as it is served: torch adds up two rows in another order than one, and
    # four bits can tell. It differs from processor to processor where they do.
    served = serve(smollm2, codec=codec, native_weights="fp32" if extension() else None)
    cold = served.ask(PROMPT, FEW).answer()
    assert " Saturday" in cold.text
    hit = served.ask(PROMPT, FEW).answer()
    assert hit.cached_tokens > 0
    assert hit.tokens == cold.tokens
    together = served.together([PROMPT, PROMPT + " Saturday, Sunday."], FEW)
    assert together[0].tokens == cold.tokens


def test_eight_bits_with_scales_answer_as_fp32_does(smollm2: Loaded, serve: Serve) -> None:
    want = serve(smollm2).ask(PROMPT, FEW).answer()
    for codec in ("int8", "q8_0"):
        assert serve(smollm2, codec=codec).ask(PROMPT, FEW).answer().tokens == want.tokens


def test_a_plan_refuses_what_the_codec_cannot_store(tiny: Loaded) -> None:
    model = str(tiny.checkpoint.path)
    with pytest.raises(ConfigError, match=r"--kv: q4_0 .* 2 x 16: .* multiple of 32"):
        plan_serving(Config(model=model, kv="q4_0"))
    with pytest.raises(ConfigError, match=r"--kv: 'fp8_ds_mla' can be sized but not served"):
        plan_serving(Config(model=model, kv="fp8_ds_mla"))
    planned = plan_serving(Config(model=model, kv="int8", kv_memory="8MiB"))
    [block] = planned.layout.blocks
    assert {p.field.name for p in block.fields} == {"data", "scale"}
    with pytest.raises(ConfigError, match="names layer 99"):
        plan_serving(Config(model=model, kv="int8,99=int4"))
    planned = plan_serving(Config(model=model, kv="k=int8,1=fp16", kv_memory="8MiB"))
    [block] = planned.layout.blocks
    stored = {(p.layer, p.plane): p.codec for p in block.fields}
    assert (stored[0, "k"], stored[0, "v"], stored[1, "k"]) == ("int8", "bf16", "fp16")
