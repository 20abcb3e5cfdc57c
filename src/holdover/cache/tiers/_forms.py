"""The form in which a tier with a codec of its own stores blocks: a layout, as the arena's is."""

from __future__ import annotations

from holdover.cache.tiers.base import TierSpec
from holdover.codecs.base import codec_names, kv_choice, uniform
from holdover.errors import ConfigError
from holdover.spec.layout import BlockLayout, CacheLayout, CodecChoice

FIELD = "--tiers"


def stored_layout(spec: TierSpec, layout: CacheLayout) -> CacheLayout:
    """What the tier's blocks look like; the arena's own where the spec names no codec.

    Raises ConfigError where the codec is not denser, naming those that are.
    """
    if spec.codec is None:
        return layout
    try:
        stored = CacheLayout.of(layout.spec, kv_choice(spec.codec))
    except ConfigError as error:  # planes that it cannot store
        raise ConfigError(FIELD, f"{spec.kind}: {error.reason}") from error
    if _is_denser(stored, layout):
        return stored
    denser = [name for name in codec_names() if _would_do(uniform(name), layout)]
    now = ", ".join(sorted({placed.codec for block in layout.blocks for placed in block.fields}))
    plain = f"leave it out ({spec.kind}:SIZE) to store blocks as they are"
    remedy = f"use {', '.join(denser)}, or {plain}" if denser else f"no codec is; {plain}"
    raise ConfigError(
        FIELD, f"{spec.kind}: {spec.codec} is not denser than the cache's own {now}; {remedy}"
    )


def demand_codec(text: str, what: str) -> None:
    """Refuse a codec that does not exist, before anything is opened."""
    try:
        kv_choice(text)
    except ConfigError as error:
        raise ConfigError(FIELD, f"{what}: {error.reason}") from error


def _would_do(choice: CodecChoice, layout: CacheLayout) -> bool:
    try:
        return _is_denser(CacheLayout.of(layout.spec, choice), layout)
    except ConfigError:  # planes that the codec cannot store
        return False


def _is_denser(stored: CacheLayout, layout: CacheLayout) -> bool:
    """Whether no plane takes more bytes and every block takes fewer."""
    for new, old in zip(stored.blocks, layout.blocks, strict=True):
        now = _planes(old)
        if new.nbytes >= old.nbytes or any(n > now[at] for at, n in _planes(new).items()):
            return False
    return True


def _planes(block: BlockLayout) -> dict[tuple[int, str], int]:
    """Bytes of each layer's planes."""
    found: dict[tuple[int, str], int] = {}
    for placed in block.fields:
        at = placed.layer, placed.plane
        found[at] = found.get(at, 0) + placed.field.nbytes
    return found
