"""Which backend runs: the one asked for, or of those there are the fastest that can.

`HOLDOVER_BACKEND` stands for --backend where that is not given. What is asked for and cannot run is
an error; `auto` says why it passed one over.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import cast

from holdover.errors import ConfigError
from holdover.kernels.base import KernelModule
from holdover.registry import check_plugin, load_plugin
from holdover.spec.layout import CacheLayout

AUTO = "auto"
BACKEND_VARIABLE = "HOLDOVER_BACKEND"
_PREFERRED = ("native", "reference")  # the last one serves everything


@dataclass(frozen=True, slots=True)
class Selected:
    """`passed_over` says why `auto` did not take a faster one."""

    name: str
    module: KernelModule
    passed_over: str | None = None


def asked_backend(flag_value: str) -> str:
    """The backend's name or `auto`; a wrong name is an error before a model is opened."""
    asked, where = flag_value, "--backend"
    if asked == AUTO:
        asked, where = os.environ.get(BACKEND_VARIABLE, AUTO), BACKEND_VARIABLE
    if asked != AUTO:
        check_plugin("holdover.kernels", asked, where)
    return asked


def select_backend(asked: str, layout: CacheLayout) -> Selected:
    """What serves this layout here; ConfigError when that is not what was asked for."""
    passed_over: list[str] = []
    for name in _PREFERRED if asked == AUTO else (asked,):
        module = cast(KernelModule, load_plugin("holdover.kernels", name))
        why = module.refusal(layout)
        if why is None:
            return Selected(name, module, "; ".join(passed_over) or None)
        passed_over.append(f"{name}: {why}")
    raise ConfigError("--backend", f"{'; '.join(passed_over)}; use --backend reference")
