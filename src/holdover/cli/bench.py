"""`holdover bench`: drive a server that speaks OpenAI's API and say how fast it is."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.bench.load import Load, Target
from holdover.cli.options import plain_command
from holdover.cli.screen import print_json, progress_bar
from holdover.config import flag
from holdover.errors import ConfigError

if TYPE_CHECKING:
    from holdover.cli.screen import Advance

_DEFAULTS = Load()
_TARGET = Target()


def _load_option(field: str, help_text: str) -> Any:
    """None when it was not given: a workload has its own."""
    return typer.Option(help=help_text, show_default=str(getattr(_DEFAULTS, field)))


def register(app: typer.Typer) -> None:
    @plain_command(app, "bench")
    def bench(
        url: Annotated[str, typer.Option(help="The server, with or without /v1.")] = _TARGET.url,
        workload: Annotated[
            str | None,
            typer.Option(
                metavar="[single|prefill|again|decode|streams|chat|pressure]",
                help="A named workload instead of the four numbers that follow.",
            ),
        ] = None,
        streams: Annotated[int | None, _load_option("streams", "Requests at once.")] = None,
        requests: Annotated[int | None, _load_option("requests", "Requests in all.")] = None,
        input_words: Annotated[
            int | None,
            _load_option("input_words", "Words of each prompt; the result has its tokens."),
        ] = None,
        output_tokens: Annotated[
            int | None, _load_option("output_tokens", "Most tokens of each answer.")
        ] = None,
        repeats: Annotated[
            int | None, typer.Option(help="Repetitions of a workload, instead of its own number.")
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="Model name; the first of its list when not given.")
        ] = _TARGET.model,
        api_key: Annotated[
            str | None, typer.Option(help="Sent to the server.", envvar="HOLDOVER_API_KEY")
        ] = _TARGET.api_key,
        seed: Annotated[int, typer.Option(help="Same seed, same prompts.")] = _DEFAULTS.seed,
        ignore_eos: Annotated[
            bool, typer.Option(help="Ask for answers of full length; not part of OpenAI's API.")
        ] = _TARGET.ignore_eos,
        extra_body: Annotated[
            str | None,
            typer.Option(metavar="<json>", help="""Fields for every request, as '{"top_k": 1}'."""),
        ] = None,
        timeout_s: Annotated[
            float, typer.Option(help="Longest silence of a stream, in seconds.")
        ] = _TARGET.timeout_s,
        json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    ) -> None:
        """Measure latency and throughput of an OpenAI-compatible server.

        Time to the first token (TTFT), time between tokens, output tokens per second, errors.
        """
        target = Target(url, model, api_key, ignore_eos, timeout_s, _fields(extra_body))
        numbers = {
            "streams": streams, "requests": requests, "input_words": input_words,
            "output_tokens": output_tokens,
        }  # fmt: skip
        given = {name: value for name, value in numbers.items() if value is not None}
        if workload is None:
            if repeats is not None:
                raise ConfigError("--repeats", "is for a --workload; without one give --requests")
            with progress_bar("requests") as advance:
                report, lines = _drive(Load(target, seed=seed, **given), advance)
        else:
            if given:
                raise ConfigError(flag(next(iter(given))), "the --workload has its own; leave it")
            with progress_bar("requests") as advance:
                report, lines = _work(target, workload, seed, repeats, advance)
        if json:
            print_json(report)
        else:
            print("\n".join(lines))
        if report.get("finished") == 0:
            raise typer.Exit(1)


def _drive(load: Load, advance: Advance) -> tuple[dict[str, Any], list[str]]:
    import asyncio

    from holdover.bench.report import bench_json, bench_lines
    from holdover.bench.run import run_load

    n_done = 0
    advance(0, load.requests)

    def count(sample: object) -> None:
        nonlocal n_done
        n_done += 1
        advance(n_done, load.requests)

    report = bench_json(asyncio.run(run_load(load, count)))
    return report, bench_lines(report)


def _work(
    target: Target, workload: str, seed: int, repeats: int | None, advance: Advance
) -> tuple[dict[str, Any], list[str]]:
    import asyncio

    from holdover.bench.report import workload_json, workload_lines
    from holdover.bench.workloads import run_workload

    report = workload_json(asyncio.run(run_workload(target, workload, seed, repeats, advance)))
    return report, workload_lines(report)


def _fields(text: str | None) -> dict[str, Any]:
    try:
        fields = {} if text is None else json_text.loads(text)
    except json_text.JSONDecodeError as error:
        raise ConfigError("--extra-body", f"{text!r} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("--extra-body", f"""{text} is no JSON object, as '{{"top_k": 1}}' is""")
    return fields
