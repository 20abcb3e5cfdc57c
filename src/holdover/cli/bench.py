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
        url: Annotated[str, typer.Option(help="The server, with or without /v1.")] = _DEFAULTS.url,
        streams: Annotated[int, typer.Option(help="Requests at once.")] = _DEFAULTS.streams,
        requests: Annotated[int, typer.Option(help="Requests in all.")] = _DEFAULTS.requests,
        input_words: Annotated[
            int, typer.Option(help="Words of each prompt; the result has its tokens.")
        ] = _DEFAULTS.input_words,
        output_tokens: Annotated[
            int, typer.Option(help="Most tokens of each answer.")
        ] = _DEFAULTS.output_tokens,
        model: Annotated[
            str | None, typer.Option(help="Model name; the first of its list when not given.")
        ] = _DEFAULTS.model,
        api_key: Annotated[
            str | None, typer.Option(help="Sent to the server.", envvar="HOLDOVER_API_KEY")
        ] = _DEFAULTS.api_key,
        seed: Annotated[int, typer.Option(help="Same seed, same prompts.")] = _DEFAULTS.seed,
        ignore_eos: Annotated[
            bool, typer.Option(help="Ask for answers of full length; not part of OpenAI's API.")
        ] = _DEFAULTS.ignore_eos,
        timeout_s: Annotated[
            float, typer.Option(help="Longest silence of a stream, in seconds.")
        ] = _DEFAULTS.timeout_s,
        json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    ) -> None:
        """Measure latency and throughput of an OpenAI-compatible server.

        Time to the first token (TTFT), time between tokens, output tokens per second, errors.
        """
        import asyncio

        from holdover.bench.report import bench_json, bench_lines
        from holdover.bench.run import run_load

        load = Load(
            url, streams, requests, input_words, output_tokens, model, api_key, seed, ignore_eos,
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
