"""From a `Config` to a serving plan and what the engine is built from: the one path of both.

`holdover plan` stops here; `build_engine` goes on from the same object, so a plan and a start
cannot differ. Reads headers only and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.cache.tiers._open import parse_tiers, stored_layouts, tier_warnings, tiers_bytes
from holdover.cache.tiers.base import TierSpec
from holdover.codecs.base import centred_layers, kv_choice
from holdover.config import DEFAULT_SINK_TOKENS, Config
from holdover.engine.sampler import sampler_bytes
from holdover.errors import BudgetError, ConfigError
from holdover.geometry.base import Geometry, planned_weights_bytes, read_geometry
from holdover.geometry.imposed import ImposedWindow, with_window
from holdover.kernels._selection import asked_backend, select_backend
from holdover.kernels.base import KernelModule
from holdover.kernels.native.availability import extension
from holdover.models._blueprint import Blueprint, refusal
from holdover.plan.activations import activation_bytes
from holdover.plan.budget import Budget, KvBudget, MachineBudget, TotalBudget
from holdover.plan.machine import Machine, read_machine
from holdover.plan.measured import measured_quality
from holdover.plan.serving import Parts, ServingPlan, Subject, solve, tables_bytes
from holdover.plan.warnings import plan_warnings
from holdover.registry import check_plugin
from holdover.spec.centres import CentreLayout
from holdover.spec.dtypes import DType
from holdover.spec.ends import EndLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.sparse import LEAST_TOKENS, Sparse
from holdover.units import ceil_div, largest, parse_bytes
from holdover.weights import Checkpoint, open_checkpoint

# Resident memory of a server that is not in the plan's other parts, measured on Linux with torch
# 2.13 for CPU: 369 MiB with SmolLM2's 49,152 tokens and 491 MiB with Gemma 3's 262,144, and up to
# 20 MiB more after the first requests.
LIBRARIES_BYTES = 368 * 2**20
TOKENIZER_BYTES_PER_TOKEN = 512


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with all that went into it."""

    config: Config
    model_name: str
    checkpoint: Checkpoint
    geometry: Geometry
    dtype: DType
    blueprint: Blueprint | None  # of the native decoder; None: torch computes
    threads: int
    kernels: KernelModule
    tiers: tuple[TierSpec, ...]
    plan: ServingPlan
    warnings: tuple[str, ...]  # for a person to read

    @property
    def layout(self) -> CacheLayout:
        return self.plan.layout

    @property
    def limits(self) -> Limits:
        return self.plan.limits

    @property
    def centres(self) -> CentreLayout:
        stored = stored_layouts(self.tiers, self.layout)
        return centre_layout(self.layout, self.geometry, self.limits, stored)

    @property
    def ends(self) -> EndLayout:
        return end_layout(self.config, self.geometry, self.limits)


def plan_serving(
    config: Config,
    machine: Machine | None = None,
    open_model: Callable[[str], Checkpoint] = open_checkpoint,
) -> Planned:
    """Open the model's headers and solve its plan; `machine` is this one when not given.

    Raises HoldoverError for a model, a flag or a budget that cannot work, wrong names first.
    """
    codec_for = kv_choice(config.kv)
    tiers = parse_tiers(config.tiers)
    backend = asked_backend(config.backend)
    check_plugin("holdover.cache.eviction", config.eviction, "--eviction")
    machine = machine or read_machine()
    checkpoint = open_model(config.model)
    imposed = imposed_window(config)
    geometry = served_geometry(checkpoint, imposed)
    codec_for.demand_layers(len(geometry.layers))
    codec_for.demand_planes(plane for layer in geometry.layers for plane in layer.planes)
    layout = cache_layout(config, geometry)
    selected = select_backend(backend, layout)
    kernels = selected.module
    dtype = _compute_dtype(config, machine, selected.name)
    blueprint = _blueprint(config, geometry, dtype, selected.name)
    weights_bytes = (
        planned_weights_bytes(geometry, dtype) if blueprint is None else blueprint.nbytes
    )
    threads = config.threads or machine.cores
    in_tiers_bytes = tiers_bytes(tiers, layout)
    stored = stored_layouts(tiers, layout)

    def parts_for(limits: Limits) -> Parts:
        return Parts(
            process_bytes=process_bytes(geometry.vocab_size),
            weights_bytes=weights_bytes,
            workspace_bytes=kernels.workspace_bytes(layout, limits, geometry.query_heads),
            tables_bytes=tables_bytes(layout, limits),
            tiers_bytes=in_tiers_bytes,
            activations_bytes=sampler_bytes(limits, geometry.vocab_size)
            + (
                activation_bytes(geometry, limits, dtype)
                if blueprint is None
                else blueprint.buffer_bytes(limits) + blueprint.input_bytes(limits)
            ),
            centres_bytes=centre_layout(layout, geometry, limits, stored).nbytes,
            ends_bytes=end_layout(config, geometry, limits).nbytes,
        )

    model_name = config.served_name or _model_name(config.model, checkpoint.path)
    plan = solve(
        Subject(
            model=model_name,
            architecture=geometry.architecture,
            dtype=dtype.value,
            kv=codec_for.name,
            backend=selected.name,
            context_tokens=geometry.max_context_tokens,
            weights=dtype.value if blueprint is None else blueprint.element,
            decoder="torch" if blueprint is None else "native",
            quality=None
            if imposed  # it was measured over all tokens
            else measured_quality(checkpoint.metadata, codec_for.name),
            window=imposed,
        ),
        layout,
        parts_for,
        _budget(config, machine),
        max_sequences=config.max_sequences,
        step_tokens=config.step_tokens,
        threads=threads,
        asked_context_tokens=config.max_context,
    )
    budget_flag = "--kv-memory" if config.memory is None else "--memory"
    warnings = plan_warnings(plan, machine, budget_flag)
    warnings = (*warnings, *(_requantised(spec, layout) for spec in tiers if spec.codec))
    warnings = (*warnings, *tier_warnings(tiers))
    if config.reservation != "shared":
        warnings = (*warnings, _reservation(config, plan))
    if selected.passed_over is not None:
        warnings = (*warnings, f"kernels {selected.name}, which are slow: {selected.passed_over}")
    return Planned(
        config,
        model_name,
        checkpoint,
        geometry,
        dtype,
        blueprint,
        threads,
        kernels,
        tiers,
        plan,
        warnings,
    )


def imposed_window(config: Config) -> ImposedWindow | None:
    """What --window and --sinks ask for."""
    if config.window is None:
        return None
    sink_tokens = DEFAULT_SINK_TOKENS if config.sinks is None else config.sinks
    return ImposedWindow(config.window, sink_tokens)


def served_geometry(checkpoint: Checkpoint, imposed: ImposedWindow | None) -> Geometry:
    """The checkpoint's, with a window in place of full attention where one is imposed."""
    geometry = read_geometry(checkpoint.config)
    return geometry if imposed is None else with_window(geometry, imposed)


def cache_layout(config: Config, geometry: Geometry) -> CacheLayout:
    """ConfigError where --sparse-blocks is not for this model."""
    sparse = None if config.sparse_blocks is None else Sparse(config.sparse_blocks)
    spec = CacheSpec.of(geometry.layers, config.block_tokens, sparse)
    layout = CacheLayout.of(spec, kv_choice(config.kv))
    if sparse is not None:
        _demand_sparse(sparse, layout, config, geometry)
    return layout


def _demand_sparse(sparse: Sparse, layout: CacheLayout, config: Config, geometry: Geometry) -> None:
    """Raises ConfigError with what would do, unless something may be left out, and not too much."""
    if not any(block.bounds_nbytes for block in layout.blocks):
        if config.window is not None:
            raise ConfigError(
                "--sparse-blocks",
                "beside --window no layer keeps its whole context, of which few blocks could be "
                "read; give one or the other",
            )
        raise ConfigError(
            "--sparse-blocks",
            f"{geometry.architecture} has no layer that can be read so: none after the first "
            f"{sparse.dense_layers} attends to keys and values of its whole context; leave it out",
        )
    block_tokens, longest = config.block_tokens, geometry.max_context_tokens
    least = ceil_div(LEAST_TOKENS, block_tokens)
    if sparse.blocks < least:
        raise ConfigError(
            "--sparse-blocks",
            f"{sparse.blocks} blocks of {block_tokens} tokens are too few to answer from; "
            f"give {least} or more",
        )
    always_read = sparse.read_blocks - sparse.blocks
    most = ceil_div(longest, block_tokens) - always_read - 1
    if sparse.blocks > most:
        advice = f"give {most} or less, or leave it out" if most >= least else "leave it out"
        raise ConfigError(
            "--sparse-blocks",
            f"{sparse.blocks} blocks of {block_tokens} tokens leave out nothing of the {longest} "
            f"tokens that the model was made for; {advice}",
        )


def centre_layout(
    layout: CacheLayout, geometry: Geometry, limits: Limits, stored: Sequence[CacheLayout] = ()
) -> CentreLayout:
    """Room for the centres of all keys whose codec asks for them, where whole heads are turned: in
    the arena or in what tiers store."""
    layers = (
        layer
        for layer in sorted({n for form in (layout, *stored) for n in centred_layers(form)})
        if geometry.ropes[geometry.layer_ropes[layer]].dim == geometry.head_dim
    )
    ropes = geometry.layer_ropes
    return CentreLayout.of(layout.spec, layers, ropes, limits.max_context_tokens)


def end_layout(config: Config, geometry: Geometry, limits: Limits) -> EndLayout:
    """None are kept where a prompt finds nothing of an earlier one, and beside sparse attention,
    where rows do not follow from tokens alone, but from which of them were generated too."""
    reused = config.reservation == "shared" and config.sparse_blocks is None
    n_kept = config.prompt_ends if reused else 0
    return EndLayout.of(n_kept, limits.max_sequences, geometry.hidden_size)


def process_bytes(vocab_size: int) -> int:
    """Interpreter, libraries and tokenizer: the one part that is measured and not counted."""
    return LIBRARIES_BYTES + vocab_size * TOKENIZER_BYTES_PER_TOKEN


def _requantised(spec: TierSpec, layout: CacheLayout) -> str:
    """What a tier with a codec of its own costs."""
    [stored] = stored_layouts([spec], layout)
    own, dense = (
        sum(block.logical_bytes(form.spec.block_tokens) for block in form.blocks)
        for form in (layout, stored)
    )
    return (
        f"--tiers {spec.kind} stores blocks requantised in {spec.codec}, in {dense / own:.0%} of "
        "their bytes: what comes back is close to what was computed, not equal"
    )


def _reservation(config: Config, plan: ServingPlan) -> str:
    """What is lost by it. Raises BudgetError where no conversation has its room."""
    if config.reservation == "paged":
        return "--reservation paged reuses no prefix; it is there to be compared with"
    layout, context_tokens = plan.layout, plan.limits.max_context_tokens
    fit = layout.whole_conversations(plan.n_sectors, context_tokens)
    if not fit:
        whole = largest(lambda n: layout.whole_conversations(plan.n_sectors, n) > 0, context_tokens)
        raise BudgetError(
            f"--reservation contiguous: the budget has no room for {context_tokens} tokens of "
            f"every layer at once; give --max-context {whole} or less, or more memory"
        )
    held = "1 conversation" if fit == 1 else f"{fit} conversations, each"
    return (
        f"--reservation contiguous holds {held} with room for {context_tokens} "
        "tokens, and reuses no prefix; it is there to be compared with"
    )


def _compute_dtype(config: Config, machine: Machine, backend: str) -> DType:
    """Natively bf16: half the bytes to read, and sums in fp32. In torch only where the CPU
    multiplies it; emulated it is slower than fp32 and less exact."""
    asked = (config.weights or "auto") if config.dtype == "auto" else config.dtype
    if asked in ("auto", "int8"):
        fast = backend == "native" or machine.native_bf16
        return DType.BF16 if fast else DType.FP32
    return DType(asked)


def _blueprint(config: Config, geometry: Geometry, dtype: DType, backend: str) -> Blueprint | None:
    """The native decoder's, where it computes this model; ConfigError where --weights needs it."""
    element = config.weights or dtype.value
    why = f"--backend {backend} computes in torch" if backend != "native" else refusal(geometry)
    if why is None:
        native = extension()
        assert native is not None
        return Blueprint.of(native, geometry, element)
    if element != dtype.value:
        raise ConfigError(
            "--weights", f"{element} takes the native decoder: {why}; use --weights {dtype}"
        )
    return None


def _budget(config: Config, machine: Machine) -> Budget:
    if config.kv_memory is not None:
        return KvBudget(parse_bytes(config.kv_memory, "--kv-memory"))
    if config.memory is not None:
        return TotalBudget(parse_bytes(config.memory, "--memory"))
    return MachineBudget(machine)


def _model_name(asked: str, path: Path) -> str:
    """What a person typed; of a path only its last part, without the format's ending."""
    if not Path(asked).expanduser().exists():
        return asked
    name = path.resolve().name if path.is_dir() else path.stem
    if not name:
        raise ConfigError("--served-name", f"{asked} has no name of its own; give one")
    return name
