"""`holdover quality`: what each way of storing keys and values costs in quality."""

from __future__ import annotations

from typing import Annotated

import typer

from holdover.cli.options import config_command
from holdover.cli.screen import print_json, progress_bar
from holdover.config import Config

FIELDS = (
    "model", "dtype", "backend", "block_tokens", "threads", "window", "sinks", "sparse_blocks",
)  # fmt: skip
DEFAULT_CHOICES = ["bf16,int8,int4"]


def register(app: typer.Typer) -> None:
    @config_command(app, "quality", FIELDS)
    def quality(
        config: Config,
        kv: Annotated[
            list[str],
            typer.Option(
                help="Codecs as int8,int4, or one choice with rules as k=int8,v=int4; repeatable.",
                metavar="<codecs>",
                show_default=False,
            ),
        ] = DEFAULT_CHOICES,
        text: Annotated[
            str | None,
            typer.Option(
                help="Text to score, in UTF-8; Python's own help topics when not given.",
                metavar="<file>",
            ),
        ] = None,
        context: Annotated[int, typer.Option(help="Tokens of each chunk of the text.")] = 2048,
        chunks: Annotated[int, typer.Option(help="Chunks of the text.")] = 5,
        recall: Annotated[
            int, typer.Option(help="Tokens through which facts are recalled; 0 leaves that out.")
        ] = 4096,
        json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    ) -> None:
        """Measure what each way of storing keys and values costs in quality.

        A text is computed through each cache as a server computes it and compared, token by token,
        with a cache that stores what the model computes: KL divergence of the next token, whether
        the most likely token is the same, perplexity; and facts are recalled from a long context.
        All of it in fp32 unless --dtype says otherwise, so that the cache is all that differs.
        With --window every cache but the one that is compared with has that window.
        """
        from holdover.cli.loading import open_model, starting
        from holdover.quality.measure import Procedure, measure, split_choices
        from holdover.quality.report import quality_json, quality_text

        procedure = Procedure(text, context, chunks, recall)
        choices = split_choices(kv)
        with starting(), progress_bar("tokens") as advance:
            found = measure(config, open_model(config.model), choices, procedure, advance)
        report = quality_json(found)
        if json:
            print_json(report)
        else:
            print(quality_text(report), end="")
