"""What a codec is, and how `--kv` is read.

A codec file offers `CODECS`: its codecs by the name used in flags. A codec states the fields it
keeps per block (torch is not needed for that) and turns rows into fields and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from holdover.errors import ConfigError
from holdover.registry import load_all
from holdover.spec.layers import Plane
from holdover.spec.layout import CodecChoice, Field

if TYPE_CHECKING:
    from torch import Tensor


class Codec(Protocol):
    """A reversible (or nearly) map between rows and the fields stored for them.

    `rows` is [..., heads, dim]; an encoded field has the field's "token" axis moved to where the
    leading axes were: `encode` returns, per field name, a tensor [..., *field shape without
    token], element order included. `decode` is its inverse, into float32.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_error(self) -> float:
        """Largest |decoded - row| of finite rows, as a fraction of a head's largest magnitude."""

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]: ...

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]: ...

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor: ...


def codec_names() -> tuple[str, ...]:
    return tuple(sorted(_codecs()))


def get_codec(name: str, flag: str = "--kv") -> Codec:
    codecs = _codecs()
    if name not in codecs:
        raise ConfigError(flag, f"no codec {name!r}; there are: {', '.join(sorted(codecs))}")
    return codecs[name]


def uniform(name: str) -> CodecChoice:
    """The same codec for every layer and plane."""
    codec = get_codec(name)
    return lambda layer, plane: codec


def _codecs() -> dict[str, Codec]:
    modules = load_all("holdover.codecs").values()
    return {name: codec for module in modules for name, codec in module.CODECS.items()}
