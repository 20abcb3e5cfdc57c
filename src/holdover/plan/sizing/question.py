"""What a person asks about a model: the flags of `holdover plan` beyond those of a server.

Every flag's default and help text stand here, as those of a server stand in `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from holdover.config import WEIGHTS, check_sinks, flag
from holdover.errors import ConfigError

BUILT_IN = ("smollm2", "gemma3-270m")  # models that packages carry
DEFAULT_CONTEXT_TOKENS = 4096
MOST = 10**12  # of whatever a person can mean


@dataclass(frozen=True, slots=True)
class Question:
    """Flags of the sizing plan; any that is not at its default asks for that plan."""

    context: int | None = None
    """Tokens of one conversation; 4096, or the model's own limit where that is less."""
    users: int | None = None
    """Conversations at the same time."""
    gpu: str | None = None
    """Accelerator by name, for example h100 or "A100 80GB"; a wrong one says which are like it."""
    gpus: int = 1
    """Devices over which the model is split, tensor-parallel."""
    headroom: str = "10%"
    """Share or bytes of each device left for activations, kernels and the driver."""
    weights: str | None = None
    """Weights as another type (bf16, fp8, int8, int4 ...) or as a size (16GB)."""
    window: int | None = None
    """Last tokens that every full attention layer reads, in place of all: the others are lost."""
    sinks: int | None = None
    """First tokens that stay readable beside --window; 4 when not given."""
    shared_prefix: int | None = None
    """Tokens at the start that all conversations share, held once."""
    offload: str | None = None
    """Where conversations wait that do not fit on the device: ram:64GiB or disk:1TiB."""
    goal: str | None = None
    """What must fit, as users=50,context=4000: prints the changes that make it fit."""
    lengths: str | None = None
    """Lengths that differ: lognormal:mean=4000,p95=12000, or a CSV file of token counts."""
    engine: str | None = None
    """What another engine reserves: vllm, sglang or llama.cpp; options as llama.cpp:ubatch=2048."""
    assume: tuple[str, ...] = ()
    """field=value for what the model's file does not state; repeatable."""
    mtp: bool = False
    """Count the layers that predict further tokens, as an engine does that speculates with them."""
    csv: bool = False
    """Bytes over context lengths as CSV."""
    html: str | None = None
    """Write a page with charts of cache against weights to this file."""

    def __post_init__(self) -> None:
        least = {"context": 1, "users": 1, "gpus": 1, "window": 1, "sinks": 0, "shared_prefix": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ConfigError(flag(name), f"{value} is too small; the least is {smallest}")
            if value is not None and value > MOST:
                raise ConfigError(flag(name), f"{value} is too large; the most is {MOST:,}")
        check_sinks(self.window, self.sinks)

    @property
    def asks_for_sizing(self) -> bool:
        """Whether any flag was given that only the sizing plan answers.

        A type of weights that is served is answered by both, as are a window and its sinks.
        """
        rest = replace(self, window=None, sinks=None)
        rest = rest if self.weights not in WEIGHTS else replace(rest, weights=None)
        return any(getattr(rest, field.name) != field.default for field in fields(self))

    def assumed(self) -> dict[str, str]:
        """`--assume` as field to value."""
        found: dict[str, str] = {}
        for text in self.assume:
            name, equals, value = text.partition("=")
            if not name.strip() or not equals:
                raise ConfigError("--assume", f"{text!r} is not of the form field=value")
            found[name.strip()] = value.strip()
        return found
