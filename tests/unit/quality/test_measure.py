"""What `holdover quality` measures: its figures by hand, the serving path, the recall probe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from holdover.config import Config
from holdover.errors import ConfigError
from holdover.kernels.native.availability import extension
from holdover.models.base import load_model
from holdover.quality import measure as measuring
from holdover.quality.divergence import Divergence
from holdover.quality.forced import ForcedCache
from holdover.quality.measure import Procedure, Quality, measure, split_choices
from holdover.quality.recall import FACTS, Probe, make_probe, recalled
from holdover.quality.report import quality_json, quality_text
from holdover.text.tokenizer import load_tokenizer
from holdover.weights import Checkpoint, open_checkpoint

from .conftest import SIZES, saved

SHORT = Procedure(context=192, chunks=2, recall=0)
BACKENDS = ["reference"] if extension() is None else ["native", "reference"]


def config_of(checkpoint: Checkpoint, backend: str = "auto") -> Config:
    return Config(model=str(checkpoint.path), threads=1, backend=backend)


def run(checkpoint: Checkpoint, *choices: str, procedure: Procedure = SHORT) -> Quality:
    return measure(config_of(checkpoint), checkpoint, choices, procedure)


def test_figures_are_those_of_the_formula() -> None:
    """In float64 and another library, one row after the other."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(150, 300, generator=generator) * 3
    other = reference + torch.randn(150, 300, generator=generator) * 0.3
    targets = torch.randint(0, 300, (150,), generator=generator)
    divergence = Divergence()
    for rows in (slice(0, 100), slice(100, 150)):
        divergence.add(reference[rows], other[rows], targets[rows])
    kl, same, nll, reference_nll = [], [], [], []
    for p, q, target in zip(
        reference.double().numpy(), other.double().numpy(), targets.tolist(), strict=True
    ):
        p, q = (x - x.max() - np.log(np.exp(x - x.max()).sum()) for x in (p, q))
        kl.append(np.sum(np.exp(p) * (p - q)))
        same.append(p.argmax() == q.argmax())
        nll.append(-q[target])
        reference_nll.append(-p[target])
    figures = divergence.figures()
    assert figures.scored_tokens == 150
    assert figures.kl_mean == pytest.approx(np.mean(kl), rel=1e-4)
    assert figures.kl_p99 == pytest.approx(np.percentile(kl, 99), rel=1e-4)
    assert figures.same_top == pytest.approx(np.mean(same))
    assert figures.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)
    ratio = np.exp(np.mean(nll) - np.mean(reference_nll))
    assert figures.perplexity_ratio == pytest.approx(ratio, rel=1e-5)


def test_narrower_codecs_diverge_more(tiny: Checkpoint) -> None:
    found = run(tiny, "bf16", "int8", "int4", "k=int8,v=int4")
    names = [stored.kv for stored in found.choices]
    assert names == ["fp32", "bf16", "int8", "int4", "k=int8,v=int4"]
    assert found.choices[0].figures is None
    figures = {s.kv: s.figures for s in found.choices if s.figures is not None}
    assert 0 < figures["int8"].kl_mean < figures["k=int8,v=int4"].kl_mean
    assert figures["k=int8,v=int4"].kl_mean < figures["int4"].kl_mean < 1
    assert figures["bf16"].kl_mean < 1e-3
    assert found.scored_tokens == 2 * (192 - 96 - 1)
    assert all(f.scored_tokens == found.scored_tokens for f in figures.values())
    capacity = {stored.kv: stored.capacity for stored in found.choices}
    assert (capacity["fp32"], capacity["bf16"]) == (0.5, 1.0)
    assert capacity["int8"] == pytest.approx(2 * 32 / 34, rel=0.02)  # 32 dims and a scale
    assert capacity["int4"] == pytest.approx(2 * 32 / 20, rel=0.02)  # two scales of 16 dims


def test_a_window_is_compared_with_all_tokens(tiny: Checkpoint) -> None:
    procedure = replace(SHORT, chunks=1)
    config = replace(config_of(tiny), window=40, sinks=2)
    found = measure(config, tiny, ["int8"], procedure)
    assert [stored.kv for stored in found.choices] == ["fp32", "fp32", "int8"]
    exact, windowed, both = (stored.figures for stored in found.choices)
    assert exact is None
    assert windowed is not None
    assert both is not None
    assert both.kl_mean > 0.01
    assert windowed.kl_mean > 0.01
    wide = replace(config, window=190)
    almost = measure(wide, tiny, [], procedure).choices[1].figures
    assert almost is not None
    assert almost.kl_mean < windowed.kl_mean / 4
    assert quality_json(found)["window"] == {"window_tokens": 40, "sink_tokens": 2}
    assert "keep 40 tokens and the first 2 of each" in quality_text(quality_json(found))
    with pytest.raises(ConfigError, match="give --window 191 or less"):
        measure(replace(config, window=192), tiny, [], procedure)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["tiny", "windowed"])
def test_token_by_token_and_in_steps_give_the_same_figures(
    model: str, backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(model)
    procedure, config = replace(SHORT, chunks=1, context=96), config_of(checkpoint, backend)
    in_steps = measure(config, checkpoint, ["int4"], procedure)
    monkeypatch.setattr(measuring, "_step_tokens", lambda vocab_size: 1)
    by_token = measure(config, checkpoint, ["int4"], procedure)
    one, other = in_steps.choices[1].figures, by_token.choices[1].figures
    assert one is not None
    assert other is not None
    assert in_steps.backend == by_token.backend == backend
    # A matrix product of one row adds up in another order than one of many; rows may be rounded
    # to another level for it, here and there.
    assert other.kl_mean == pytest.approx(one.kl_mean, rel=0.02)
    assert other.perplexity == pytest.approx(one.perplexity, rel=1e-3)
    assert other.same_top == pytest.approx(one.same_top, abs=0.02)


def test_the_text_goes_through_the_codec(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a codec that loses what it stores, the figures say so."""
    from holdover.codecs.int8 import Int8

    monkeypatch.setattr(Int8, "decode", lambda self, fields: fields["data"].flatten(-2).float() * 0)
    config = config_of(tiny, "reference")
    found = measure(config, tiny, ["int8"], replace(SHORT, chunks=1)).choices[1].figures
    assert found is not None
    assert found.kl_mean > 0.1


def asked(checkpoint: Checkpoint, context_tokens: int) -> tuple[ForcedCache, Probe]:
    """A cache of a probe's size, as `measure` makes it."""
    config = replace(
        config_of(checkpoint), dtype="fp32", kv="fp32", step_tokens=256, max_sequences=FACTS,
        max_context=context_tokens + 32,
    )  # fmt: skip
    planned = measuring._plan(config, checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    text = tokenizer.encode("It is said that nobody ever knew. " * 40, add_special_tokens=False)
    model = load_model(checkpoint, planned.geometry, planned.dtype)
    return ForcedCache.of(planned, model, tokenizer), make_probe(tokenizer, text, context_tokens)


def test_a_model_recalls_what_stands_in_its_context_and_nothing_else(smollm2_path: Path) -> None:
    cache, probe = asked(open_checkpoint(smollm2_path), 700)
    assert len(probe.context) + max(map(len, probe.questions)) == 700
    assert len(set(probe.answers)) == FACTS
    assert recalled(cache, probe).right > 0.2  # by chance 0.03; it is a small model
    # The same with the answers moved by one fact: every answer is wrong now.
    moved = replace(probe, answers=probe.answers[1:] + probe.answers[:1])
    assert recalled(cache, moved).right < 0.1


@pytest.mark.parametrize("model", ["tiny", "windowed"])
def test_a_model_that_knows_nothing_recalls_by_chance(
    model: str, request: pytest.FixtureRequest
) -> None:
    cache, probe = asked(request.getfixturevalue(model), 700)
    assert recalled(cache, probe).right < 0.3
    cache.manager.check()
    assert cache.manager.held_bytes == 0
    assert cache.manager.cached_bytes == 0


def test_the_report_says_the_same_as_json_and_to_people(tiny: Checkpoint) -> None:
    found = run(tiny, "int8", procedure=Procedure(context=128, chunks=1, recall=700))
    report = json.loads(json.dumps(quality_json(found)))
    assert report["schema"] == "holdover.quality/1"
    assert (report["context_tokens"], report["chunks"], report["recall_facts"]) == (128, 1, FACTS)
    reference, int8 = report["choices"]
    assert reference["is_reference"]
    assert "kl_mean" not in reference
    assert int8["bytes_per_token"] == 2 * 2 * 2 * 34
    assert 0 <= int8["recall"] <= 1
    text = quality_text(report)
    assert f"{int8['kl_mean']:.5f}" in text
    assert f"{report['scored_tokens']:,} tokens scored" in text
    without = quality_text(quality_json(run(tiny, "int8")))
    assert "recall" not in without


def test_choices_are_lists_and_single_ones_with_rules() -> None:
    given = ["int8, int4", "k=int8,v=int4", "int4,0-1=bf16", "int8"]
    assert split_choices(given) == ("int8", "int4", "k=int8,v=int4", "int4,0-1=bf16")
    with pytest.raises(ConfigError, match=r"--kv: no codec 'int5'; there are: .*int4"):
        split_choices(["int8,int5"])


@pytest.fixture
def short_text(tmp_path: Path) -> str:
    path = tmp_path / "short.txt"
    path.write_text("Nothing much. " * 20)
    return str(path)


def test_errors_name_what_would_work(tiny: Checkpoint, short_text: str) -> None:
    for procedure, message in (
        (Procedure(text=short_text, context=200, chunks=2, recall=0),
         r"--text: short.txt has 280 tokens and 2 x 200 are needed; give --chunks 1"),
        (Procedure(text=short_text, context=512, chunks=1, recall=0),
         r"--text: short.txt has 280 tokens .* give --context 280 --chunks 1"),
        (Procedure(context=4096, recall=0),
         r"--context: 4096 is more than the model's context of 2048 tokens"),
        (Procedure(context=64, chunks=1, recall=4096), r"--recall: 4096 is more than .* 2048"),
        (Procedure(context=64, chunks=1, recall=100),
         r"--recall: 100 tokens are too few for 32 facts; give \d+ or more, or 0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            run(tiny, "int8", procedure=procedure)
    Path(short_text).write_text("No.")
    with pytest.raises(ConfigError, match=r"3 tokens .* give a text of 4 or more"):
        run(tiny, "int8", procedure=replace(SHORT, text=short_text))
    with pytest.raises(ConfigError, match="names layer 7"):
        run(tiny, "int8,7=bf16")
    with pytest.raises(ConfigError, match="--chunks"):
        Procedure(chunks=0)
    for wrong in (b"\xff\xfe\x00", b"\xff"):
        Path(short_text).write_bytes(wrong)
        with pytest.raises(ConfigError, match="not text in UTF-8"):
            run(tiny, "int8", procedure=replace(SHORT, text=short_text))


def test_generated_tokens_that_read_less_are_compared_with_all(tmp_path: Path) -> None:
    """A context of 192 tokens is 12 blocks: 9 candidates are all of them."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": 4}))
    checkpoint = saved(tmp_path, model)
    found = {}
    for blocks in (None, 4, 8):
        config = replace(config_of(checkpoint), sparse_blocks=blocks)
        quality = measure(config, checkpoint, ("fp32", "bf16"), replace(SHORT, chunks=1))
        found[blocks] = quality.choices
    assert [c.kv for c in found[None]] == ["fp32", "bf16"]
    assert [(c.kv, c.sparse_blocks) for c in found[4]] == [
        ("fp32", None), ("fp32", 4), ("bf16", 4),
    ]  # fmt: skip
    (_, few, _), (_, most, _) = found[4], found[8]
    assert few.figures is not None
    assert most.figures is not None
    assert 4 * most.figures.kl_mean < few.figures.kl_mean > 1e-3
    config = replace(config, sparse_blocks=9)
    with pytest.raises(ConfigError, match=r"--sparse-blocks: 12 blocks of 16 tokens.* of 192"):
        measure(config, checkpoint, (), replace(SHORT, chunks=1, recall=0))
    assert few.bytes_per_token > found[None][0].bytes_per_token


def test_the_command(tiny: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from holdover.cli.app import build_app

    common = ["quality", str(tiny.path), "--context", "96", "--chunks", "1", "--recall", "0"]
    found = CliRunner().invoke(build_app(), [*common, "--kv", "int8,int4", "--json"])
    assert found.exit_code == 0, found.stderr
    report = json.loads(found.stdout)
    assert [c["kv"] for c in report["choices"]] == ["fp32", "int8", "int4"]
    refused = CliRunner().invoke(build_app(), [*common, "--kv", "int9"])
    assert refused.exit_code == 2
    assert "--kv: no codec 'int9'" in refused.stderr
