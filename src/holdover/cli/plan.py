"""`holdover plan`: every byte before anything is loaded. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdover.cli.flags import MODEL_FIELDS, PLAN_FIELDS
from holdover.cli.options import plan_command
from holdover.cli.planning import run_plan


def register(app: typer.Typer) -> None:
    @plan_command(app, "plan", MODEL_FIELDS + PLAN_FIELDS)
    def plan(
        settings: dict[str, Any],
        asked: dict[str, Any],
        json: Annotated[bool, typer.Option("--json", help="The same numbers as JSON.")] = False,
        fields: Annotated[
            bool, typer.Option("--fields", help="Also where every byte of a block goes.")
        ] = False,
    ) -> None:
        """Say what a model's KV cache will take, and what fits.

        Nothing is loaded for that: headers and a config are read.

        MODEL is a built-in name, a GGUF file, a folder, a config.json, a name of the catalogue
        (llama-3-8b), or a Hugging Face repository, of which only the config and the file sizes
        are read.

        A model that can be served, with its weights at hand, gets the plan of a server, with
        --window and --sinks too, and --weights of a type that it loads (fp32, bf16, int8). Every
        other model, and any question that --context, --users, --gpu, --gpus, --headroom, other
        --weights, --shared-prefix, --offload, --goal, --lengths, --engine, --assume, --mtp, --csv
        or --html asks, gets the sizing plan: bytes per token and conversation, and what fits on a
        device.
        """
        run_plan(settings, asked, json, fields)
