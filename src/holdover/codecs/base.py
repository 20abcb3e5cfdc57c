"""What a codec is, and how `--kv` is read.

A codec file offers `CODECS`: its codecs by the name used in flags. A codec states the fields it
keeps per block (torch is not needed for that) and turns rows into fields and back. Some only state
fields, so that other engines' caches can be sized; `serves` tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from holdover.codecs._choice import KvChoice, parse_choice
from holdover.errors import ConfigError
from holdover.registry import load_all
from holdover.spec.layers import Plane
from holdover.spec.layout import CacheLayout, CodecChoice, Field

if TYPE_CHECKING:
    from torch import Tensor


class SizedCodec(Protocol):
    """What sizing needs. `fields` raises ConfigError for a plane that the codec cannot store."""

    @property
    def name(self) -> str: ...

    @property
    def serves(self) -> bool:
        """Whether it is a `Codec` that the engine can store rows with."""

    @property
    def centres_keys(self) -> bool:
        """Whether keys are stored less their centre, where a model has one: `kernels._centre`."""

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]: ...


class Codec(SizedCodec, Protocol):
    """A reversible (or nearly) map between rows and the fields stored for them.

    `rows` is [..., heads, dim]; an encoded field has the field's "token" axis moved to where the
    leading axes were: `encode` returns, per field name, a tensor [..., *field shape without
    token], element order included. `decode` is its inverse, into float32.
    """

    @property
    def max_error(self) -> float:
        """Largest root mean square of decoded - row over a head's finite row, as a fraction of
        its largest magnitude."""

    @property
    def error_from(self) -> float:
        """The largest magnitude that a head must have for `max_error` to hold."""

    def encode(self, rows: Tensor) -> Mapping[str, Tensor]: ...

    def decode(self, fields: Mapping[str, Tensor]) -> Tensor: ...


def codec_names() -> tuple[str, ...]:
    """The codecs that the engine can serve with."""
    return tuple(sorted(name for name, codec in _codecs().items() if codec.serves))


def sized_codec_names() -> tuple[str, ...]:
    """All codecs, those for sizing only included."""
    return tuple(sorted(_codecs()))


def get_codec(name: str, flag: str = "--kv") -> Codec:
    """A codec that serves, by its name."""
    if name not in _codecs():
        raise ConfigError(flag, f"no codec {name!r}; there are: {', '.join(codec_names())}")
    codec = get_sized_codec(name, flag)
    if not codec.serves:
        names = ", ".join(codec_names())
        raise ConfigError(flag, f"{name!r} can be sized but not served; use one of: {names}")
    return cast(Codec, codec)


def get_sized_codec(name: str, flag: str = "--kv") -> SizedCodec:
    codecs = _codecs()
    if name not in codecs:
        raise ConfigError(flag, f"no codec {name!r}; there are: {', '.join(sorted(codecs))}")
    return codecs[name]


def uniform(name: str) -> CodecChoice:
    """The same codec for every layer and plane."""
    codec = get_sized_codec(name)
    return lambda layer, plane: codec


def kv_choice(text: str) -> KvChoice:
    """`--kv` for a server: every codec named serves."""
    return parse_choice(text, get_codec)


def sized_kv_choice(text: str) -> KvChoice:
    """`--kv` for sizing: any codec that is known."""
    return parse_choice(text, get_sized_codec)


def centred_layers(layout: CacheLayout) -> tuple[int, ...]:
    """The layers whose keys are stored less their centre."""
    codecs = {p.layer: p.codec for b in layout.blocks for p in b.fields if p.plane == "k"}
    return tuple(layer for layer, name in sorted(codecs.items()) if _codecs()[name].centres_keys)


def demand(codec: str, plane: Plane, fits: bool, needs: str) -> None:
    """Refuse a plane that a codec cannot store."""
    if not fits:
        held = f"{plane.name} rows of {plane.heads} x {plane.dim}"
        raise ConfigError("--kv", f"{codec} cannot store this model's {held}: it needs {needs}")


def _codecs() -> Mapping[str, SizedCodec]:
    modules = load_all("holdover.codecs").values()
    return {name: codec for module in modules for name, codec in module.CODECS.items()}
