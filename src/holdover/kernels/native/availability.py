"""Whether the native kernels can run here: built, for this CPU, and for what a layout stores.

`HOLDOVER_ISA` forces an instruction set, so that tests run the slower ones too.
"""

from __future__ import annotations

import os
from math import prod
from types import ModuleType

from holdover.errors import ConfigError
from holdover.spec.layers import Attended
from holdover.spec.layout import CacheLayout, PlacedField
from holdover.spec.sparse import BOUNDS

ISA_VARIABLE = "HOLDOVER_ISA"


def extension() -> ModuleType | None:
    """The compiled module; None where it was not built.

    One that is there and cannot be loaded raises ImportError with its cause.
    """
    try:
        from holdover.kernels.native import _native  # type: ignore[attr-defined]
    except ImportError as error:
        if "cannot import name '_native'" in str(error):
            return None
        raise
    module: ModuleType = _native
    return module


def refusal(layout: CacheLayout) -> str | None:
    """Why this layout is not served natively, in words; None: it is."""
    native = extension()
    if native is None:
        return "the native kernels were not built when holdover was installed: no C++20 compiler"
    codecs, most_dims = native.codecs(), native.MAX_DIM
    for block in layout.blocks:
        if Attended.of(block.group.planes) is None:
            names = ", ".join(sorted(plane.name for plane in block.group.planes))
            return (
                f"the native kernels attend over k and v or over latent and rope, not over {names}"
            )
        for plane in block.group.planes:
            if plane.dim % 8 or plane.dim > most_dims:
                return (
                    f"the native kernels take rows of 8 to {most_dims} dims in steps of 8, "
                    f"not {plane.dim}"
                )
        for placed in block.fields:
            if placed.plane == BOUNDS:
                continue
            if placed.codec not in codecs:
                return f"the native kernels have no codec {placed.codec!r}: {', '.join(codecs)}"
            if placed.field.axes[0] != "head" or "token" not in placed.field.axes[1:3]:
                return f"the native kernels do not know the order {placed.field.axes}"
    return None


def require(layout: CacheLayout) -> ModuleType:
    """The compiled module, or ConfigError with the reason and what works instead."""
    why = refusal(layout)
    if why is not None:
        raise ConfigError("--backend", f"native: {why}; use --backend reference")
    native = extension()
    assert native is not None
    return native


def chosen_isa(native: ModuleType) -> str:
    """The best instruction set that was built and that this CPU has, or the one asked for."""
    names: list[str] = native.isas()
    asked = os.environ.get(ISA_VARIABLE)
    if not asked:
        return names[-1]
    if asked not in names:
        raise ConfigError(ISA_VARIABLE, f"{asked!r} does not run here; use {', '.join(names)}")
    return asked


def field_strides(placed: PlacedField) -> tuple[int, int, int, int, int]:
    """A field's byte offset in its block; bytes from head to head, token to token and unit to unit
    of a row, and of a unit: what lies in a run whether or not tokens lie between two of them.
    """
    field = placed.field
    after = [prod(field.shape[i + 1 :]) * field.dtype.item_bytes for i in range(len(field.shape))]
    strides = dict(zip(field.axes, after, strict=True))
    head, token = strides.pop("head"), strides.pop("token", 0)
    unit = max(strides.values(), default=0)
    inner = [n for axis, n in zip(field.axes, field.shape, strict=True) if axis in strides][1:]
    return placed.offset, head, token, unit, prod(inner) * field.dtype.item_bytes
