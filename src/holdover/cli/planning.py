"""What `holdover plan` does once its flags are read: which plan, and how it is printed.

Imports neither torch nor the library that parses the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from holdover.cli.flags import MODEL_FIELDS, PLAN_FIELDS, Flag, flags_of, parse_strictly
from holdover.cli.screen import warn
from holdover.config import Config, flag
from holdover.errors import ConfigError, HoldoverError, UnsupportedModelError
from holdover.files import existing_path, typed_path
from holdover.plan.sizing.question import BUILT_IN, Question
from holdover.plan.sizing.text import one_line

# Settings that mean something to a server only.
_SERVING_FIELDS = (
    "kv_memory", "dtype", "backend", "threads", "max_sequences", "max_context", "tiers",
    "prompt_ends", "sparse_blocks",
)  # fmt: skip


def quick_plan(arguments: Sequence[str]) -> bool:
    """Run `plan ARGUMENTS` if it is a plain command line; False where it is left to the library."""
    if not arguments or arguments[0] != "plan":
        return False
    flags = flags_of(Config, PLAN_FIELDS) | flags_of(Question)
    flags |= {f"--{name}": Flag(f"{name}_output", "bool", False) for name in ("json", "fields")}
    try:
        values = parse_strictly(arguments[1:], flags)
    except ConfigError as error:
        if "--json" in arguments:  # the library would not say it as JSON
            _refuse(error, as_json=True)
        return False
    if values is None:
        return False
    as_json, with_fields = values.pop("json_output"), values.pop("fields_output")
    settings = {name: values.pop(name) for name in MODEL_FIELDS + PLAN_FIELDS}
    try:
        run_plan(settings, values, as_json, with_fields)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, and Python would say so again at its end
    return True


def run_plan(
    settings: dict[str, Any], asked: dict[str, Any], as_json: bool, with_fields: bool
) -> None:
    """Print the plan; a HoldoverError ends with exit code 2, and as JSON where that was asked."""
    try:
        config, question = Config.of(settings), Question(**asked)
        if as_json and question.csv:
            raise ConfigError("--csv", "give either --csv or --json, not both")
        if not question.asks_for_sizing and _has_weights(config.model):
            try:
                served = replace(
                    config, weights=question.weights, window=question.window, sinks=question.sinks
                )
                _serving_plan(served, as_json, with_fields)
                return
            except UnsupportedModelError:
                if _serving_flags(config, with_fields):
                    raise
        _sizing_plan(config, question, as_json, with_fields)
    except HoldoverError as error:
        _refuse(error, as_json)


def _has_weights(model: str) -> bool:
    """Whether the files that a server loads are at hand."""
    path = existing_path(model)
    if path is None:
        return model in BUILT_IN
    return any(path.glob("*.safetensors")) if path.is_dir() else path.suffix == ".gguf"


def _serving_plan(config: Config, as_json: bool, with_fields: bool) -> None:
    """Raises UnsupportedModelError for a model that is no family's."""
    from holdover.engine.planning import plan_serving
    from holdover.geometry.base import read_geometry
    from holdover.plan.sizing.source import read_config
    from holdover.weights import open_header
    from holdover.weights.config import canonical_config

    folder = Path(config.model).expanduser()
    if (folder / "config.json").exists():
        # Before the tensors: those of other models have other names.
        read_geometry(canonical_config(read_config(folder / "config.json")))
    planned = plan_serving(config, open_model=open_header)
    plan = planned.plan
    warn(planned.warnings)
    if as_json:
        from holdover.plan.report import plan_json

        print(json.dumps(plan_json(plan, with_fields=with_fields), indent=2))
    else:
        from holdover.cli.screen import stdout_console
        from holdover.plan.tables import print_plan

        print_plan(stdout_console(), plan, with_fields=with_fields)


def _sizing_plan(config: Config, question: Question, as_json: bool, with_fields: bool) -> None:
    given = _serving_flags(config, with_fields)
    if given:
        asked = _sizing_flags(question)
        because = f", and {asked[0]} asks for the other one" if asked else ""
        raise ConfigError(
            given[0],
            f"belongs to the plan of a server{because}; the sizing plan of a model knows "
            "--memory, --gpu, --weights, --kv and --context",
        )
    from holdover.plan.sizing.report import curves_json, sizing_json
    from holdover.plan.sizing.solve import solve

    plan = solve(
        config.model, question, kv=config.kv, memory=config.memory,
        block_tokens=config.block_tokens, step_tokens=config.step_tokens,
    )  # fmt: skip
    report = sizing_json(plan)
    if question.html is not None:
        from holdover.plan.sizing.page import write_page

        write_page(typed_path(question.html, "--html"), report, curves_json(plan))
        print(f"wrote {one_line(question.html)}", file=sys.stderr)
    if as_json:
        print(json.dumps(report, indent=2))
    elif question.csv:
        from holdover.plan.sizing.table_csv import contexts_csv

        sys.stdout.write(contexts_csv(report))
    else:
        from holdover.plan.sizing.tables import plan_text

        sys.stdout.write(plan_text(report))
    sys.stdout.flush()


def _serving_flags(config: Config, with_fields: bool) -> list[str]:
    """Flags that were given and that only a server's plan takes."""
    changed = [
        flag(field.name)
        for field in fields(Config)
        if field.name in _SERVING_FIELDS and getattr(config, field.name) not in (field.default, [])
    ]
    return ["--fields", *changed] if with_fields else changed


def _sizing_flags(question: Question) -> list[str]:
    return [
        flag(field.name)
        for field in fields(question)
        if getattr(question, field.name) != field.default
    ]


def _refuse(error: HoldoverError, as_json: bool) -> NoReturn:
    print(f"holdover: {one_line(str(error))}", file=sys.stderr)
    if as_json:
        field = getattr(error, "field", getattr(error, "path", "model"))
        reason = getattr(error, "reason", str(error))
        print(json.dumps({"error": {"field": one_line(field), "reason": one_line(reason)}}))
    raise SystemExit(2) from None
