"""`holdover bench`: drive a server that speaks OpenAI's API and say how fast it is."""

from __future__ import annotations

from typing import Annotated

import typer

from holdover.bench.load import Load
from holdover.cli.options import plain_command
from holdover.cli.screen import print_json, progress_bar

_DEFAULTS = Load()


def register(app: typer.Typer) -> None:
    @plain_command(app, "bench")
    def bench(
        url: Annotated[str, typer.Option(help="The server.")] = _DEFAULTS.url,
        streams: Annotated[int, typer.Option(help="Requests at once.")] = _DEFAULTS.streams,
        requests: Annotated[int, typer.Option(help="Requests in all.")] = _DEFAULTS.requests,
        input_tokens: Annotated[
            int, typer.Option(help="Words of each prompt.")
        ] = _DEFAULTS.input_tokens,
        output_tokens: Annotated[
            int, typer.Option(help="Most tokens of each answer.")
        ] = _DEFAULTS.output_tokens,
        model: Annotated[
            str | None, typer.Option(help="Its first model when not given.")
        ] = _DEFAULTS.model,
        api_key: Annotated[str | None, typer.Option(envvar="HOLDOVER_API_KEY")] = _DEFAULTS.api_key,
        seed: Annotated[int, typer.Option(help="Of the prompts' text.")] = _DEFAULTS.seed,
        ignore_eos: Annotated[
            bool, typer.Option(help="Ask for answers of full length; not part of OpenAI's API.")
        ] = _DEFAULTS.ignore_eos,
        timeout_s: Annotated[
            float, typer.Option(help="Longest silence of a stream.")
        ] = _DEFAULTS.timeout_s,
        json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    ) -> None:
        """Measure TTFT, time between tokens and throughput of an OpenAI-compatible server."""
        import asyncio

        from holdover.bench.report import bench_json, bench_lines
        from holdover.bench.run import run_load

        load = Load(
            url, streams, requests, input_tokens, output_tokens, model, api_key, seed, ignore_eos,
            timeout_s,
        )  # fmt: skip
        n_done = 0
        with progress_bar("requests") as advance:
            advance(0, requests)

            def count(sample: object) -> None:
                nonlocal n_done
                n_done += 1
                advance(n_done, requests)

            report = bench_json(asyncio.run(run_load(load, count)))
        if json:
            print_json(report)
        else:
            print("\n".join(bench_lines(report)))
        if report["finished"] == 0:
            raise typer.Exit(1)
