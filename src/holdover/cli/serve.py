"""`holdover serve`: the plan in short, the load, the URL; then the server until a signal."""

from __future__ import annotations

import sys

import typer

from holdover.cli.options import (
    ENGINE_FIELDS,
    MODEL_FIELDS,
    PLAN_FIELDS,
    SERVER_FIELDS,
    config_command,
)
from holdover.cli.screen import warn
from holdover.config import Config


def register(app: typer.Typer) -> None:
    @config_command(app, "serve", MODEL_FIELDS + PLAN_FIELDS + ENGINE_FIELDS + SERVER_FIELDS)
    def serve(config: Config) -> None:
        """Serve a model over OpenAI's API, inside the planned memory."""
        from holdover.cli.loading import load_engine, open_model, starting
        from holdover.engine.planning import plan_serving
        from holdover.plan.tables import short_lines

        with starting():
            planned = plan_serving(config, open_model=open_model)
            print("\n".join(short_lines(planned.plan)), flush=True)
            warn(planned.warnings)

            from holdover.server.run import bind
            from holdover.server.run import serve as run_server

            listener = bind(config.host, config.port)  # a taken port: better known before the load
            engine = load_engine(planned)
        run_server(
            engine,
            engine.tokenizer,
            config,
            listener,
            model_name=planned.model_name,
            max_context_tokens=planned.limits.max_context_tokens,
            on_ready=lambda url: print(f"serving {url}/v1", flush=True),
            on_drain=lambda running: _say_how_it_ends(running, config.grace_s),
        )


def _say_how_it_ends(running: int, grace_s: float) -> None:
    requests = "1 request" if running == 1 else f"{running} requests"
    text = f"finishing {requests}, up to {grace_s:g} s; press Ctrl-C again to stop now"
    print(text, file=sys.stderr, flush=True)
