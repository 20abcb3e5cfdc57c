"""From `--tiers` to tiers: one kind each, in the order in which they are asked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import cast

from holdover.cache.tiers._forms import stored_layout
from holdover.cache.tiers.base import Tier, TierModule, TierSpec, TranscoderTo
from holdover.errors import ConfigError
from holdover.registry import load_plugin
from holdover.spec.layout import CacheLayout

_PACKAGE = "holdover.cache.tiers"


def parse_tiers(texts: Sequence[str]) -> tuple[TierSpec, ...]:
    """Raises HoldoverError for what cannot be read, and for two tiers of one kind."""
    specs: list[TierSpec] = []
    for text in texts:
        kind, _, rest = text.partition(":")
        spec = _module(kind).parse(rest)
        if any(spec.kind == other.kind for other in specs):
            raise ConfigError("--tiers", f"{text!r} is a second tier of kind {kind}")
        specs.append(spec)
    return tuple(specs)


def tiers_bytes(specs: Sequence[TierSpec], layout: CacheLayout) -> int:
    """Memory that they allocate in this process."""
    return sum(_module(spec.kind).buffer_bytes(spec, layout) for spec in specs)


def tier_warnings(specs: Sequence[TierSpec]) -> tuple[str, ...]:
    found = (_module(spec.kind).warning(spec) for spec in specs)
    return tuple(text for text in found if text is not None)


def stored_layouts(specs: Sequence[TierSpec], layout: CacheLayout) -> tuple[CacheLayout, ...]:
    """Those of tiers with a codec of their own. Raises ConfigError where it is not denser."""
    return tuple(stored_layout(spec, layout) for spec in specs if spec.codec is not None)


def open_tiers(
    specs: Sequence[TierSpec], layout: CacheLayout, identity: bytes, transcoder_to: TranscoderTo
) -> tuple[Tier, ...]:
    return tuple(_module(spec.kind).create(spec, layout, identity, transcoder_to) for spec in specs)


def tenant_salt(specs: Sequence[TierSpec]) -> bytes:
    """A secret that outlives the server where a tier does, and no one else's where none does."""
    kept = (_module(spec.kind).secret(spec) for spec in specs)
    return next((secret for secret in kept if secret is not None), secrets.token_bytes(32))


def _module(kind: str) -> TierModule:
    return cast(TierModule, load_plugin(_PACKAGE, kind, "--tiers"))
