"""`holdover bench WORKLOAD`: drive a server that speaks OpenAI's API and say how fast it is."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.bench.conversations import Restart
from holdover.bench.load import Target, named_url
from holdover.bench.techniques import Ladder
from holdover.bench.workload import Workload
from holdover.bench.workloads import WORKLOADS
from holdover.cli.options import values_command
from holdover.cli.screen import print_json, progress_bar
from holdover.errors import ConfigError
from holdover.files import typed_path, write_text

if TYPE_CHECKING:
    from holdover.bench.measure import Measured, Settings
    from holdover.bench.stats import Slo
    from holdover.cli.screen import Advance

_TARGET = Target()
_HELP = """Measure any server of OpenAI's API, and check its answers.

Each workload sends the same requests to every server; `holdover bench WORKLOAD --help` has its
numbers."""

_SUMMARIES = {
    "single": "How fast it is for one person alone.",
    "prefill": "Long prompts, new and then sent again.",
    "long-context": "What a token costs as the context grows.",
    "concurrent": "Many requests at once, or as they come.",
    "chat": "Users who resend their whole history.",
    "rag": "Questions behind documents in common.",
    "pressure": "Histories larger than the cache is meant to be.",
    "restart": "The next turn after a server was started again.",
    "ladder": "What each technique of the cache brings, one by one.",
}

Model = Annotated[
    str | None, typer.Option(help="Model name; the first of its list when not given.")
]
ApiKey = Annotated[str | None, typer.Option(help="Sent to --url.", envvar="HOLDOVER_API_KEY")]
Repeats = Annotated[
    int | None, typer.Option(help="Repetitions, instead of the workload's own number.")
]
Seed = Annotated[int, typer.Option(help="Same seed, same prompts.")]
WarmUp = Annotated[int, typer.Option(help="Short requests first that are not measured.")]
Check = Annotated[
    int, typer.Option(help="Prompts sent again at the end, alone: their answers must be alike.")
]
SloText = Annotated[
    str | None,
    typer.Option(
        metavar="<limits>",
        help="Limits that a good request keeps, as ttft=500ms,tpot=50ms,e2e=10s.",
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option(help="Ask for answers of full length; not part of OpenAI's API.")
]
ExtraBody = Annotated[
    str | None,
    typer.Option(
        metavar="<json>",
        help="""Fields for every request, as '{"top_k": 1}'; null leaves one out.""",
    ),
]
TimeoutS = Annotated[float, typer.Option(help="Longest silence of a stream, in seconds.")]
Retries = Annotated[
    int, typer.Option(help="Tries more where the server is busy (429, 503), when it says.")
]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
JsonFile = Annotated[
    str | None, typer.Option("--json-file", metavar="<file>", help="The result as JSON there.")
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="<file>", help="A page with charts there.")
]


@dataclass(frozen=True, slots=True)
class _Outputs:
    json: bool
    json_file: str | None
    html: str | None

    def check(self) -> None:
        """Before minutes are spent, not after."""
        for name, text in (("--json-file", self.json_file), ("--html", self.html)):
            if text and not typed_path(text, name).parent.is_dir():
                raise ConfigError(name, f"there is no folder {typed_path(text, name).parent}")

    def write(
        self,
        report: dict[str, Any],
        text: Callable[[dict[str, Any]], str],
        page: Callable[[dict[str, Any]], str],
    ) -> None:
        if self.json_file:
            path = typed_path(self.json_file, "--json-file")
            write_text(path, json_text.dumps(report, indent=1) + "\n", "--json-file")
        if self.json:
            print_json(report)
        else:
            print(text(report))
        if self.html:
            from holdover.html_page import write_html

            write_html(typed_path(self.html, "--html"), page(report))
            print(f"wrote {self.html}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, workload in WORKLOADS.items():
        _register_workload(group, name, workload)
    _register_restart(group)
    _register_ladder(group)
    app.add_typer(group, name="bench")


def _register_workload(group: typer.Typer, name: str, defaults: Workload) -> None:
    @values_command(group, name, defaults, _help(name, defaults.about))
    def run(
        asked: dict[str, Any],
        url: Annotated[
            str, typer.Option(help="The server, with or without /v1; NAME=URL names it.")
        ] = _TARGET.url,
        against: Annotated[
            list[str] | None,
            typer.Option(
                metavar="<name=url>",
                help="Another server to measure in turn with the first, repeatable. It gets no "
                "--api-key, and the first model of its list.",
            ),
        ] = None,
        model: Model = None,
        api_key: ApiKey = None,
        repeats: Repeats = None,
        seed: Seed = 0,
        warm_up: WarmUp = 1,
        check: Check = 3,
        slo: SloText = None,
        ignore_eos: IgnoreEos = True,
        extra_body: ExtraBody = None,
        timeout_s: TimeoutS = _TARGET.timeout_s,
        retries: Retries = 0,
        json: Json = False,
        json_file: JsonFile = None,
        html: Html = None,
    ) -> None:
        from holdover.bench.measure import Settings, measure
        from holdover.bench.session import run_loop

        workload = replace(defaults, **asked)  # type: ignore[type-var]
        target = Target(
            model=model, api_key=api_key, ignore_eos=ignore_eos, timeout_s=timeout_s,
            retries=retries, extra_body=_fields(extra_body),
        )  # fmt: skip
        targets = _targets(target, url, against or [])
        settings = Settings(seed, repeats, warm_up, check)

        def drive(advance: Advance) -> list[Measured]:
            return run_loop(measure(targets, name, workload, settings, advance))

        _report(name, workload, settings, slo, _Outputs(json, json_file, html), drive)


def _register_restart(group: typer.Typer) -> None:
    @values_command(group, "restart", Restart(), _help("restart", Restart().about))
    def run(
        asked: dict[str, Any],
        model: Model = None,
        repeats: Repeats = None,
        seed: Seed = 0,
        warm_up: WarmUp = 1,
        slo: SloText = None,
        extra_body: ExtraBody = None,
        timeout_s: TimeoutS = _TARGET.timeout_s,
        json: Json = False,
        json_file: JsonFile = None,
        html: Html = None,
    ) -> None:
        from holdover.bench.measure import Settings
        from holdover.bench.restart import measure_restarts

        workload = Restart(**asked)
        target = Target(model=model, timeout_s=timeout_s, extra_body=_fields(extra_body))
        settings = Settings(seed, repeats, warm_up, check=0)

        def drive(advance: Advance) -> list[Measured]:
            return [measure_restarts(target, workload, settings, advance)]

        _report("restart", workload, settings, slo, _Outputs(json, json_file, html), drive)


def _register_ladder(group: typer.Typer) -> None:
    @values_command(group, "ladder", Ladder(), _help("ladder", Ladder().about))
    def run(
        asked: dict[str, Any],
        repeats: Repeats = None,
        seed: Seed = 0,
        warm_up: WarmUp = 1,
        json: Json = False,
        json_file: JsonFile = None,
        html: Html = None,
    ) -> None:
        from holdover.bench.facts import run_facts
        from holdover.bench.ladder import measure_ladder
        from holdover.bench.ladder_report import ladder_json, ladder_page, ladder_text
        from holdover.bench.measure import Settings

        ladder, outputs = Ladder(**asked), _Outputs(json, json_file, html)
        outputs.check()
        facts = run_facts(sys.argv[1:])
        settings = Settings(seed, repeats, warm_up, check=0)
        with progress_bar("requests") as advance:
            rungs = measure_ladder(ladder, settings, advance)
        report = ladder_json(ladder, rungs, facts, seed)
        outputs.write(report, ladder_text, ladder_page)


def _report(
    name: str, workload: Workload, settings: Settings, slo_text: str | None, outputs: _Outputs,
    drive: Callable[[Advance], list[Measured]],
) -> None:  # fmt: skip
    from holdover.bench.answers import FAULTS
    from holdover.bench.charts import bench_page
    from holdover.bench.facts import run_facts
    from holdover.bench.report import bench_json
    from holdover.bench.stats import parse_slo
    from holdover.bench.text import bench_text

    slo: Slo | None = None if slo_text is None else parse_slo(slo_text)
    outputs.check()
    run = run_facts(sys.argv[1:])
    with progress_bar("requests") as advance:
        measured = drive(advance)
    report = bench_json(name, workload, measured, run, settings.seed, slo)
    outputs.write(report, bench_text, bench_page)
    totals = [server["totals"] for server in report["servers"]]
    if any(not t["finished"] or not t["answers"].keys().isdisjoint(FAULTS) for t in totals):
        raise typer.Exit(1)


def _targets(target: Target, url: str, against: list[str]) -> list[Target]:
    """The first has the key and the model that were given."""
    if "=" not in url and not url.startswith("http"):
        raise ConfigError("--url", f"{url!r} does not say how; write it as http://{url}")
    own = named_url(url, "--url") if not url.startswith("http") else (_TARGET.name, url)
    found = [replace(target, name=own[0], url=own[1])]
    for text in against:
        name, other = named_url(text, "--against")
        if name in {each.name for each in found}:
            raise ConfigError("--against", f"two servers are named {name!r}")
        found.append(replace(target, name=name, url=other, api_key=None, model=None))
    return found


def _fields(text: str | None) -> dict[str, Any]:
    try:
        fields = {} if text is None else json_text.loads(text)
    except json_text.JSONDecodeError as error:
        raise ConfigError("--extra-body", f"{text!r} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("--extra-body", f"""{text} is no JSON object, as '{{"top_k": 1}}' is""")
    return fields


def _help(name: str, about: str) -> str:
    return f"{_SUMMARIES[name]}\n\nUnless told otherwise: {about}."
