"""From a model and a `Question` to a `SizingPlan`: the one path of table, JSON, CSV and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdover.config import DEFAULT_SINK_TOKENS, flag
from holdover.errors import ConfigError
from holdover.geometry.sizing import Assumption, ModelMemory, Parameters
from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.ceiling import Ceiling, decode_ceiling
from holdover.plan.sizing.command import Command
from holdover.plan.sizing.device import Device, Headroom, device_of
from holdover.plan.sizing.offload import Offload
from holdover.plan.sizing.question import DEFAULT_CONTEXT_TOKENS, Question
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.source import Source, find_source
from holdover.plan.sizing.weights import Weights, weights_of

if TYPE_CHECKING:
    from holdover.geometry.sizing.weights import ModelWeights
    from holdover.plan.engines.base import Option, Reservation
    from holdover.plan.sizing.goal import Goal, GoalAnswer
    from holdover.plan.sizing.lengths import LengthsAnswer

TABLE_TOKENS = (2_000, 8_000, 32_000, 128_000)


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """A model's sizes, and on a device what fits. `scenario` is None where no device was named."""

    source: Source
    model: ModelMemory
    cache: Cache  # of the whole model, over all ranks
    weights: Weights | None
    assumptions: tuple[Assumption, ...]
    users: int
    context_tokens: int
    step_tokens: int
    shared_tokens: int
    scenario: Scenario | None
    ceiling: Ceiling | None
    lengths: LengthsAnswer | None
    goal: GoalAnswer | None
    engine: EngineAnswer | None
    command: Command

    @property
    def table_tokens(self) -> tuple[int, ...]:
        return tuple(sorted({*TABLE_TOKENS, self.context_tokens}))


def solve(
    model: str,
    question: Question,
    *,
    kv: str = "bf16",
    memory: str | None = None,
    block_tokens: int = 16,
    step_tokens: int = 512,
) -> SizingPlan:
    """Size `model`, and answer what the question asks of a device.

    Raises HoldoverError naming the flag, the field or the file.
    """
    source = find_source(model)
    facts, weights, assumed = _facts(source, question)
    cache, changed = _cache(question, Cache.of(facts.memories, kv, block_tokens))
    goal = None if question.goal is None else _parse_goal(question.goal)
    context_tokens = question.context or (goal.context_tokens if goal else _usual_context(facts))
    users = question.users or (goal.users if goal else 1)
    shortest = min(context_tokens, goal.context_tokens if goal else context_tokens)
    if (question.shared_prefix or 0) > shortest:
        raise ConfigError(
            "--shared-prefix", f"is longer than a whole conversation, {shortest:,} tokens"
        )
    scenario = _scenario(question, memory, cache, weights, users, context_tokens)
    lengths = _lengths(question, facts, cache, scenario)
    settings = {
        "kv": kv, "memory": memory, "block_tokens": block_tokens, "step_tokens": step_tokens
    }  # fmt: skip
    return SizingPlan(
        source=source,
        model=facts,
        cache=cache,
        weights=weights,
        assumptions=(*assumed, *changed, *(lengths.notes if lengths else ())),
        users=users,
        context_tokens=context_tokens,
        step_tokens=step_tokens,
        shared_tokens=question.shared_prefix or 0,
        scenario=scenario,
        ceiling=None if scenario is None else decode_ceiling(scenario),
        lengths=lengths,
        engine=_engine(question, facts, source, cache, users, context_tokens, scenario),
        goal=None if goal is None else _goal(goal, question, scenario),
        command=Command.of(model, question, settings),
    )


def _facts(
    source: Source, question: Question
) -> tuple[ModelMemory, Weights | None, tuple[Assumption, ...]]:
    """What the model remembers, its weights, and what had to be assumed for either."""
    assume = question.assumed()
    count = assume.pop("parameters", None)
    facts = source.read(assume, question.mtp)
    parameters = facts.parameters
    own: tuple[Assumption, ...] = ()
    counted: ModelWeights | None = None
    if count is not None:
        parameters = Parameters(n := whole_number(count, "parameters"), n, "file")
        own = (Assumption("parameters", count, "--assume"),)
    elif parameters is None and source.config and source.stored is None:
        counted, own = _counted(source.config, assume)
        parameters = None if counted is None else counted.parameters
    weights, of_weights = weights_of(
        source.stored, parameters, source.config, source.weights_dtype or facts.stored_dtype,
        question.weights, counted,
    )  # fmt: skip
    return facts, weights, (*facts.assumptions, *of_weights, *own)


def _scenario(
    question: Question,
    memory: str | None,
    cache: Cache,
    weights: Weights | None,
    users: int,
    context_tokens: int,
) -> Scenario | None:
    """On the device asked about; None where none was named."""
    device, headroom = device_of(question.gpu, memory), Headroom.parse(question.headroom)
    if device is None:
        _needs_no_device(question)
        return None
    if weights is None:
        raise ConfigError(
            "parameters",
            "the file does not say how many weights there are, or of a type that is not "
            "known, so that nothing can be said about a device. Give --weights 16GB, or "
            "--assume parameters=8.03e9 and --weights bf16",
        )
    return Scenario.of(
        cache, weights, device, question.gpus, headroom, users, context_tokens,
        question.shared_prefix or 0, _offload(question, device),
    )  # fmt: skip


def _cache(question: Question, cache: Cache) -> tuple[Cache, tuple[Assumption, ...]]:
    """As --window has it, and what has to be said about that."""
    if question.window is None:
        return cache, ()
    if not cache.can_be_windowed():
        raise ConfigError("--window", "the model has no layer that reads all tokens")
    sinks = DEFAULT_SINK_TOKENS if question.sinks is None else question.sinks
    value = f"{question.window} tokens and {sinks} sinks in every full attention layer"
    return cache.windowed(question.window, sinks), (Assumption("window", value, "--window"),)


def _offload(question: Question, device: Device) -> Offload | None:
    if question.offload is None:
        return None
    if question.lengths is not None:
        raise ConfigError(
            "--offload", "--lengths asks how many are on the device at once; leave one of them out"
        )
    offload = Offload.parse(question.offload)
    if offload.home == "ram" and device.unified:
        raise ConfigError("--offload", f"{device.name} shares its memory with the processor")
    return offload


def _needs_no_device(question: Question) -> None:
    """Raises ConfigError for a flag that says something about a device where none was named."""
    if question.gpus > 1:
        raise ConfigError("--gpus", "says how many; name the device with --gpu or --memory")
    if question.offload is not None:
        raise ConfigError("--offload", "keeps what a device cannot; name it with --gpu or --memory")


def _lengths(
    question: Question, model: ModelMemory, cache: Cache, scenario: Scenario | None
) -> LengthsAnswer | None:
    if question.lengths is None:
        return None
    from holdover.plan.sizing.lengths import answer_lengths, parse_lengths

    lengths = parse_lengths(question.lengths, question.context, model.max_context_tokens)
    return answer_lengths(lengths, cache, scenario)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What another engine would reserve, on each of `n_devices`. `options` are those it was
    computed with, `logical_bytes` what the formula gives for the same."""

    name: str
    options: Mapping[str, Option]
    reservation: Reservation
    n_devices: int
    logical_bytes: int


def _engine(
    question: Question,
    model: ModelMemory,
    source: Source,
    cache: Cache,
    users: int,
    context_tokens: int,
    scenario: Scenario | None,
) -> EngineAnswer | None:
    if question.engine is None:
        return None
    for given in ("window", "shared_prefix", "offload"):
        if getattr(question, given) is not None:
            raise ConfigError(flag(given), "is not part of what --engine answers; leave it out")
    from holdover.plan.engines.base import Request, find_engine

    engine, options = find_engine(question.engine)
    room_bytes = None if scenario is None else scenario.cache_room_bytes
    request = Request(
        model, source.config, cache.codec, users, context_tokens, question.gpus, room_bytes,
        options,
        0 if scenario is None else scenario.weights_bytes,
        0 if scenario is None else scenario.device.memory_bytes,
    )  # fmt: skip
    n_ranks = question.gpus if engine.SPLITS_HEADS else 1
    logical_bytes = users * cache.on_one_rank(n_ranks).logical_bytes(context_tokens)
    return EngineAnswer(engine.NAME, options, engine.reserve(request), n_ranks, logical_bytes)


def _parse_goal(text: str) -> Goal:
    from holdover.plan.sizing.goal import Goal

    return Goal.parse(text)


def _goal(goal: Goal, question: Question, scenario: Scenario | None) -> GoalAnswer:
    from holdover.plan.sizing.accelerated import other_devices
    from holdover.plan.sizing.goal import answer_goal

    if scenario is None:
        raise ConfigError("--goal", "says what must fit; say on what with --gpu or --memory")
    devices = other_devices(scenario.device) if question.gpu is not None else ()
    return answer_goal(scenario, goal, devices)


def _counted(
    config: Mapping[str, Any], assume: Mapping[str, str]
) -> tuple[ModelWeights | None, tuple[Assumption, ...]]:
    """By the formula, and what has to be said about that."""
    from holdover.geometry.sizing.weights import count_weights

    found = count_weights(config, assume)
    if found is None:
        return None, ()
    without = f", without those of {' and '.join(found.missing)}" if found.missing else ""
    source = f"counted from the matrices that the config describes{without}"
    return found, (Assumption("parameters", f"{found.parameters.count:,}", source),)


def whole_number(text: str, field: str) -> int:
    """ "8.03e9", "8B" or "8030261248" as a whole number of at least 1."""
    factor = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}.get(text.strip()[-1:].upper(), 1)
    digits = text.strip()[:-1] if factor > 1 else text
    try:
        value = round(float(digits.replace("_", "").replace(",", "")) * factor)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise ConfigError(field, f"{text!r} is not a number of at least 1")
    return value


def _usual_context(model: ModelMemory) -> int:
    limit = model.max_context_tokens
    return DEFAULT_CONTEXT_TOKENS if limit is None else min(limit, DEFAULT_CONTEXT_TOKENS)
