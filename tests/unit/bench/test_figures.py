"""What samples come to, and whether their answers are text: worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from holdover.bench.answers import Again, common_share, compared, kind_of, spread_out
from holdover.bench.client import Sample
from holdover.bench.facts import command_line, processor
from holdover.bench.load import Target
from holdover.bench.measure import Measured, Repetition
from holdover.bench.session import Asked
from holdover.bench.spread import percentile
from holdover.bench.stats import Slo, counts, parse_slo, stats
from holdover.errors import ConfigError


def sample(**fields: Any) -> Sample:
    defaults: dict[str, Any] = {
        "start_s": 0.0, "end_s": 1.0, "ttft_s": 0.2, "gaps_s": (0.1, 0.3), "prompt_tokens": 10,
        "output_tokens": 5, "asked_tokens": 5, "finish_reason": "length", "text": "some words here",
    }  # fmt: skip
    return Sample(**(defaults | fields))


FAILED = sample(error="HTTP 500", error_detail="odd", ttft_s=None, gaps_s=(), output_tokens=0)


def test_figures_are_those_of_the_requests_that_finished() -> None:
    found = stats(
        [
            sample(cached_tokens=4),
            sample(start_s=1.0, end_s=4.0, ttft_s=0.4, gaps_s=(0.5,), cached_tokens=0),
            FAILED,
        ],
        Slo(ttft_s=0.3),
    )
    assert found["ttft_p50_ms"] == pytest.approx(300)
    assert found["per_token_p50_ms"] == pytest.approx((100 + 125) / 2)
    assert found["inter_token_p99_ms"] == pytest.approx(496)
    assert found["request_p50_ms"] == pytest.approx(2000)
    assert found["output_tokens_per_s"] == 10 / 4
    assert found["total_tokens_per_s"] == 30 / 4
    assert found["prompt_tokens_per_s"] == pytest.approx(20 / 0.6)
    assert found["cached_share"] == 0.2
    assert (found["goodput_requests_per_s"], found["good_share"]) == (1 / 4, 1 / 3)


def test_nothing_that_finished_has_no_times() -> None:
    assert stats([FAILED], None) == {"requests_per_s": 0, "output_tokens_per_s": 0}
    found = counts([FAILED, FAILED], exact=True)
    assert (found["requests"], found["finished"]) == (2, 0)
    assert found["errors"] == {"HTTP 500": 2}
    assert found["error_examples"] == {"HTTP 500": "odd"}
    assert (found["cached_tokens"], found["answers"]) == (None, {})


@pytest.mark.parametrize(
    ("fields", "exact", "truncated"),
    [
        ({}, True, 0),
        ({"output_tokens": 3}, True, 1),  # fewer than asked for
        ({"output_tokens": 3, "counted": True}, True, 0),  # events, not tokens
        ({}, False, 1),  # the model had more to say
        ({"output_tokens": 3, "finish_reason": "stop"}, False, 0),
    ],
)
def test_truncated(fields: dict[str, Any], exact: bool, truncated: int) -> None:
    assert counts([sample(**fields)], exact)["truncated"] == truncated


def test_limits_are_read_with_their_units() -> None:
    assert parse_slo("ttft=500ms,tpot=0.05s, e2e=10s") == Slo(0.5, 0.05, 10.0)
    assert not Slo(e2e_s=0.5).keeps(sample())
    assert Slo(ttft_s=0.2, tpot_s=0.1).keeps(sample())
    assert not Slo(tpot_s=0.09).keeps(sample())


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "ttft=xms", "itl=5ms", "ttft=0ms"])
def test_limits_that_cannot_be_read_are_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--slo.*ttft=500ms"):
        parse_slo(text)


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([0.0, 100.0], 95) == 95.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The cache keeps what was computed.", "fine"),
        ("\u6f22\u5b57\u306e\u7b54\u3048", "fine"),
        ("cut in the middle of a char\ufffd", "fine"),
        ("of a \ufffd\ufffd char", "broken"),
        ("\x00 words", "broken"),
        ("tabs\tand\nlines are text", "fine"),
        ("   \n", "empty"),
        ("!!!!!!!!!!!!!!!!", "one_character"),
        ("! ! ! ! ! ! ! ! !", "one_character"),
        ("!!!!", "fine"),  # too short to tell
        ("and then the next one, " * 30, "loops"),
    ],
)
def test_kinds_of_answers(text: str, kind: str) -> None:
    assert kind_of(sample(text=text)) == kind


def test_reasoning_is_text_too() -> None:
    assert kind_of(sample(text="", reasoning="let me see")) == "fine"
    assert kind_of(sample(text="", output_tokens=0)) == "fine"


def test_answers_are_compared_by_what_they_begin_with() -> None:
    assert common_share("a b c d", "a b x d") == 0.5
    assert common_share("", "") == 0
    assert compared([]) == Again()
    pairs = [("a b c d e", "a b c d e"), ("a b c d e", "a b c d x"), ("a b c d", "a x c d")]
    assert compared(pairs) == Again(asked=3, equal=1, unlike=1, least_common=0.25)
    assert compared([("short", "short")]).unlike == 0
    assert compared([("short", "other")]).unlike == 1


def test_what_is_asked_again_is_spread_over_the_run() -> None:
    asked = [Asked([], sample(start_s=i)) for i in range(10)]
    asked.insert(3, Asked([], FAILED))
    assert [each.sample.start_s for each in spread_out(asked, 3)] == [0, 4, 9]
    assert len(spread_out(asked[:2], 3)) == 2
    assert spread_out(asked, 0) == []


def test_a_client_that_was_too_busy_says_so() -> None:
    calm, busy = Repetition([], 0.1), Repetition([], 0.9)
    assert Measured(Target(), "m", {}, [calm]).problems == []
    [problem] = Measured(Target(), "m", {}, [calm, busy]).problems
    assert "busy for 90% of the time" in problem


def test_the_command_is_written_down_without_keys() -> None:
    typed = ["bench", "chat", "--api-key", "s3cret", "--url", "a b"]
    assert command_line(typed) == "holdover bench chat --api-key '***' --url 'a b'"
    assert "s3cret" not in command_line(["bench", "--api-key=s3cret"])


def test_the_processor_is_named_with_its_vector_instructions(tmp_path: Any) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f\n")
    assert processor(cpuinfo) == "Some CPU (avx512f, avx2)"
    assert processor(tmp_path / "none")
