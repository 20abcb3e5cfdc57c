"""A memory's formula with the model's numbers put in, one line each, for a person to follow.

The lines are written from the same fields that the bytes are counted from, and end in the count
itself; a test multiplies every line out.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import prod

from holdover.spec.layout import PlacedField
from holdover.spec.memory import StoredMemory
from holdover.spec.residency import Fixed


def formula(part: StoredMemory) -> str:
    """ "2 (k, v) x 32 layers x 8 heads x 128 dim x 2 bytes = 131,072 bytes per token"."""
    memory = part.memory
    alike = Counter(_per_layer(part, layer) for layer in memory.layers)
    text = " + ".join(f"{_counted(count, 'layer')} x {row}" for row, count in alike.items())
    if len(alike) > 1 and (memory.tokens_per_row > 1 or isinstance(memory.residency, Fixed)):
        text = f"({text})"
    if isinstance(memory.residency, Fixed):
        if memory.residency.n_rows > 1:
            text = f"{memory.residency.n_rows:,} rows x {text}"
        return f"{text} = {part.logical_bytes(0):,} bytes, whatever the length"
    if memory.tokens_per_row > 1:
        text += f" / {memory.tokens_per_row} tokens a row"
    return f"{text} = {number_text(part.bytes_per_token)} bytes per token"


def limit_text(part: StoredMemory) -> str:
    """How long a memory grows; empty where it always does or never."""
    memory = part.memory
    if memory.grows or isinstance(memory.residency, Fixed):
        return ""
    n_tokens = memory.rows(2**40) * memory.tokens_per_row
    return f"until {n_tokens:,} tokens, then {part.logical_bytes(2**40):,} bytes"


def number_text(value: Fraction) -> str:
    """Exact where a decimal fraction of a few digits is; a fraction of whole numbers elsewhere."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    text = f"{float(value):,.4f}".rstrip("0")
    return text if Fraction(text.replace(",", "")) == value else f"about {text}"


def _per_layer(part: StoredMemory, layer: int) -> str:
    terms = _terms(part, layer)
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]


def _terms(part: StoredMemory, layer: int) -> list[str]:
    """One term per plane; k and v of one shape and codec become "2 (k, v) x"."""
    texts: dict[str, list[str]] = {}
    for plane in part.memory.planes:
        heads = f"{plane.heads} head{'s' if plane.heads != 1 else ''} x " if plane.heads > 1 else ""
        rows = part.block.block_tokens
        fields = part.block.fields_of(layer, plane.name)
        texts.setdefault(f"{heads}{_row(fields, plane.heads * rows, plane.dim)}", []).append(
            plane.name
        )
    named = len(part.memory.planes) > 1
    return [
        f"{len(names)} ({', '.join(names)}) x {text}"
        if len(names) > 1
        else f"{names[0]} {text}"
        if named
        else text
        for text, names in texts.items()
    ]


def _row(fields: tuple[PlacedField, ...], head_rows: int, dim: int) -> str:
    """Bytes of one head's row: "128 dim x 2 bytes", with whatever a codec stores beside it."""
    if len(fields) == 1 and prod(fields[0].field.shape) == head_rows * dim:
        return f"{dim} dim x {_counted(fields[0].field.dtype.item_bytes, 'byte')}"
    parts = [f"{Fraction(f.field.nbytes, head_rows)} {f.field.name}" for f in fields]
    return f"({' + '.join(parts)}) bytes of {fields[0].codec}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
