"""`holdover simulate`: a trace of requests against caches of several sizes. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdover.cli.options import config_command
from holdover.cli.screen import print_json, progress_bar, warn
from holdover.config import Config

FIELDS = ("kv", "tiers", "eviction", "max_sequences", "step_tokens")
_DEFAULT_MODEL = Config().model


def _sizes(help_text: str) -> Any:
    return typer.Option(help=help_text, metavar="<size,size>", show_default=False)


def register(app: typer.Typer) -> None:
    @config_command(app, "simulate", FIELDS)
    def simulate(
        config: Config,
        trace: Annotated[
            str,
            typer.Argument(help="Mooncake JSONL, Azure CSV, or agents' conversations as JSONL."),
        ],
        model: Annotated[
            str, typer.Option(help="As `holdover plan` takes it; no weights are needed.")
        ] = _DEFAULT_MODEL,
        kv_memory: Annotated[
            list[str], _sizes("Bytes of the KV arena; several, as 1GiB,2GiB,4GiB, give the curve.")
        ] = [],  # noqa: B006 - typer's own copy
        memory: Annotated[
            list[str],
            _sizes("Bytes of a device, of which weights and --headroom come off; or several."),
        ] = [],  # noqa: B006
        gpu: Annotated[
            str, typer.Option(help="Device that says how fast, and without a size how large.")
        ] = "A100 80GB",
        headroom: Annotated[
            str, typer.Option(help="Share or bytes of --memory left for everything else.")
        ] = "10%",
        weights: Annotated[
            str | None,
            typer.Option(help="Weights as another type (fp8, int4) or as a size (16GB)."),
        ] = None,
        assume: Annotated[
            list[str],
            typer.Option(
                help="field=value for what the model's file does not state; repeatable.",
                metavar="<field=value>",
                show_default=False,
            ),
        ] = [],  # noqa: B006
        block_tokens: Annotated[
            int | None,
            typer.Option(
                help="Tokens per KV block; the trace's own blocks when not given, or several "
                "of them in one where prompts are long."
            ),
        ] = None,
        max_context: Annotated[
            int | None,
            typer.Option(help="Longest prompt + answer; what the arena holds when not given."),
        ] = None,
        prefill_tokens_per_s: Annotated[
            float | None, typer.Option(help="Speed of prompts, instead of an estimate.")
        ] = None,
        decode_ms: Annotated[
            float | None, typer.Option(help="Shortest step, instead of an estimate.")
        ] = None,
        ram_bandwidth: Annotated[
            str | None, typer.Option(help="Bytes a second out of a RAM tier.", metavar="<size>")
        ] = None,
        disk_bandwidth: Annotated[
            str | None, typer.Option(help="Bytes a second out of a disk tier.", metavar="<size>")
        ] = None,
        speed: Annotated[
            float, typer.Option(help="How many times as fast as in the trace requests come.")
        ] = 1.0,
        users: Annotated[
            int | None,
            typer.Option(help="Conversations at a time of a trace of conversations; all if not."),
        ] = None,
        requests: Annotated[
            int | None, typer.Option(help="Only the first requests of the trace.")
        ] = None,
        csv: Annotated[
            str | None, typer.Option(help="A row for each size to this file.", metavar="<file>")
        ] = None,
        html: Annotated[
            str | None, typer.Option(help="A page with the curves to this file.", metavar="<file>")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    ) -> None:
        """Replay a trace of requests against caches of any size.

        No model is loaded for that, and no memory taken.

        Runs the engine's own cache manager, prefix index, eviction, admission and tiers in
        simulated time, and says what is reused, from where, and how long requests would
        wait: for one size or several, so that a size can be chosen before it is bought.
        """
        from holdover.simulate.ask import Asked, prepare
        from holdover.simulate.report import simulate_csv, simulate_json, simulate_text
        from holdover.simulate.run import sweep

        asked = Asked(
            trace, model, tuple(kv_memory), tuple(memory), gpu, headroom, weights, tuple(assume),
            block_tokens, max_context, prefill_tokens_per_s, decode_ms, ram_bandwidth,
            disk_bandwidth, speed, users, requests, csv, html,
        )  # fmt: skip
        prepared = prepare(config, asked)
        warn(prepared.warnings)
        with progress_bar("requests") as advance:
            outcomes = sweep(prepared.trace, prepared.setup, prepared.sizes, advance)
        report = simulate_json(prepared.trace, prepared.setup, outcomes)
        if csv is not None:
            asked.write_csv(simulate_csv(report))
        if html is not None:
            from holdover.simulate.page import write_page

            write_page(asked.html_path, report)
        if json:
            print_json(report)
        else:
            print(simulate_text(report), end="")
