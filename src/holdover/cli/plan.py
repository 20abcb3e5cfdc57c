"""`holdover plan`: every byte before anything is loaded. Imports no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from holdover.cli.options import PLAN_FIELDS, config_command
from holdover.cli.screen import print_json, stdout_console
from holdover.config import Config


def register(app: typer.Typer) -> None:
    @config_command(app, "plan", PLAN_FIELDS)
    def plan(
        config: Config,
        json: Annotated[bool, typer.Option("--json", help="The same numbers as JSON.")] = False,
        fields: Annotated[
            bool, typer.Option("--fields", help="Also where every byte of a block goes.")
        ] = False,
    ) -> None:
        """Say what serving a model will take, and how many conversations fit."""
        from holdover.engine.planning import plan_serving

        serving_plan = plan_serving(config).plan
        if json:
            from holdover.plan.report import plan_json

            print_json(plan_json(serving_plan, with_fields=fields))
        else:
            from holdover.plan.tables import print_plan

            print_plan(stdout_console(), serving_plan, with_fields=fields)
