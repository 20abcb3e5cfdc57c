"""The one configuration: frozen, checked once, passed explicitly.

Every command-line default comes from a field's default here. Sizes are text as a person writes
them ("256MiB"); what they come to is decided by the plan and printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdover.errors import ConfigError
from holdover.units import parse_bytes

DTYPES = ("auto", "fp32", "bf16")
WEIGHTS = ("fp32", "bf16", "int8")
DEFAULT_SINK_TOKENS = 4  # more are of little more use (StreamingLLM)
RESERVATIONS = ("shared", "paged", "contiguous")
MAX_PROMPT_ENDS = 4096  # whose rows are little beside any model
MAX_THREADS = 1024  # torch crashes where the system refuses one


@dataclass(frozen=True, slots=True)
class Config:
    """What `holdover serve` and `holdover chat` need to know."""

    model: str = "smollm2"
    """Built-in name, GGUF file, safetensors folder, or Hugging Face repository."""
    kv_memory: str | None = None
    """Bytes of the KV arena alone; without it and --memory, half of what the machine has left."""
    memory: str | None = None
    """Bytes of the whole process; the arena gets what the rest leaves. In place of --kv-memory."""
    kv: str = "bf16"
    """How keys and values are stored; apart as k=int8,v=int4, single layers as int4,0-1=bf16."""
    dtype: str = "auto"
    """Compute and weight type; auto is what is fastest on this machine. The native decoder sums in
    fp32 and keeps all between its products in fp32, whatever this says."""
    weights: str | None = None
    """How the native decoder stores weights, int8 in half the bytes of bf16; as --dtype when not
    given."""
    backend: str = "auto"
    """Kernel backend: native, reference, or auto, which is HOLDOVER_BACKEND or else the fastest."""
    tiers: tuple[str, ...] = ()
    """A slower home for blocks that the arena has no room for, repeatable, the fastest first:
    ram:2GiB, ram:2GiB:int4 (requantised) or disk:/path:20GiB, which also outlives the server, as do
    conversations: 256 MiB of them at most lie beside it."""
    share_prefixes: bool = False
    """Let clients with different API keys reuse each other's prefixes, and so tell by the time to
    the first token what others have sent."""
    prompt_ends: int = 64
    """Prompts whose last hidden state is kept, those used last: the same prompt again, what is
    before its last block still cached, gets its first token without a prefill. 4096 at most; 0
    keeps none, and none are kept beside --sparse-blocks, or with --reservation paged or
    contiguous."""
    sparse_blocks: int | None = None
    """Blocks that each KV head reads of a context for a generated token, beside the first and the
    latest; all when not given. Nothing is forgotten, and prompts read all."""
    eviction: str = "lru"
    """Eviction policy of cached blocks."""
    reservation: str = "shared"
    """How conversations take room: shared, block by block, prefixes reused; and to compare with:
    paged, which reuses none, and contiguous, where each holds the longest context all the time."""
    block_tokens: int = 16
    """Tokens per KV block."""
    max_sequences: int = 64
    """Most sequences computed in one step."""
    max_waiting_requests: int = 1024
    """Most requests that wait to begin; more are refused with status 429."""
    step_tokens: int = 512
    """Most tokens computed in one step, over all sequences."""
    max_context: int | None = None
    """Longest prompt + answer in tokens; when not given the model's own limit, or 131072 beside
    --window."""
    window: int | None = None
    """Last tokens that every full attention layer keeps, in place of all: the others are forgotten,
    and a conversation may go on beyond the model's context, in the same memory."""
    sinks: int | None = None
    """First tokens that are kept beside --window; 4 when not given."""
    threads: int | None = None
    """Compute threads; all cores this process may use when not given."""
    served_name: str | None = None
    """Model name in the API; the model's own name when not given."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    api_keys: tuple[str, ...] = ()
    """A key that clients may send, repeatable; without any, anyone is served. Several in the
    environment: HOLDOVER_API_KEYS, separated by commas or spaces."""
    grace_s: float = 10.0
    """Seconds that running requests get to finish after Ctrl-C or SIGTERM; a second one ends at
    once."""
    log_requests: bool = False
    """Print a line on stderr for each finished request: tokens, reuse and times."""

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_sequences", "max_waiting_requests", "step_tokens"):
            at_least_one(name, getattr(self, name))
        for name in ("max_context", "threads", "window", "sparse_blocks"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        if self.prompt_ends < 0:
            raise ConfigError("--prompt-ends", f"{self.prompt_ends} is too small; 0 keeps none")
        if self.prompt_ends > MAX_PROMPT_ENDS:
            raise ConfigError(
                "--prompt-ends", f"{self.prompt_ends} is too many; the most is {MAX_PROMPT_ENDS}"
            )
        check_sinks(self.window, self.sinks)
        if self.kv_memory is not None and self.memory is not None:
            raise ConfigError("--memory", "give either --kv-memory or --memory, not both")
        for name in ("kv_memory", "memory"):
            if getattr(self, name) is not None:
                parse_bytes(getattr(self, name), flag(name))
        if self.step_tokens < self.max_sequences:
            raise ConfigError(
                "--step-tokens",
                f"{self.step_tokens} is less than --max-sequences {self.max_sequences}; "
                "every running sequence needs one token of each step",
            )
        if self.dtype not in DTYPES:
            raise ConfigError("--dtype", f"{self.dtype!r}; use {', '.join(DTYPES)}")
        if self.weights not in (None, *WEIGHTS):
            raise ConfigError("--weights", f"{self.weights!r}; use {', '.join(WEIGHTS)}")
        if self.reservation not in RESERVATIONS:
            raise ConfigError(
                "--reservation", f"{self.reservation!r}; use {', '.join(RESERVATIONS)}"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError("--port", f"{self.port} is not between 0 and 65535")
        if not self.grace_s >= 0:  # NaN neither
            raise ConfigError("--grace-s", f"{self.grace_s} is not 0 or more; 0 stops at once")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError("--threads", f"{self.threads} is too many; the most is {MAX_THREADS}")
        for number, key in enumerate(self.api_keys, 1):
            _check_key(f"key {number} of {len(self.api_keys)}", key)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Config:
        """From named values; an unknown name is an error that lists the known ones."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(name, f"no such setting; there are: {', '.join(sorted(known))}")
        return cls(**values)


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def at_least_one(name: str, value: int) -> None:
    """Raises ConfigError with the flag of the field `name`."""
    if value < 1:
        raise ConfigError(flag(name), f"{value} is too small; the least is 1")


def check_sinks(window: int | None, sinks: int | None) -> None:
    """Raises ConfigError for sinks that are fewer than none, or beside no window."""
    if sinks is not None and sinks < 0:
        raise ConfigError("--sinks", f"{sinks} is too small; the least is 0")
    if sinks is not None and window is None:
        raise ConfigError("--sinks", "stay readable beside a window; give --window as well")


def keys_of(text: str) -> tuple[str, ...]:
    """The keys in HOLDOVER_API_KEYS: separated by commas, spaces or line ends."""
    keys = tuple(key for key in re.split(r"[,\s]+", text) if key)
    if not keys:
        raise ConfigError(
            "HOLDOVER_API_KEYS", "is set and holds no key; unset it if anyone is to be served"
        )
    return keys


def _check_key(which: str, key: str) -> None:
    """The key itself stays out of the message: it would end in a log."""
    if not key:
        problem = "is empty"
    elif not key.isascii() or not key.isprintable():
        problem = "has characters that an HTTP header cannot carry; use ASCII letters and digits"
    elif "," in key or " " in key:
        problem = "has a comma or a space in it; repeat --api-key for each key"
    else:
        return
    raise ConfigError("--api-key", f"{which} {problem}")
