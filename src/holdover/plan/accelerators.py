"""Accelerators by the names people type, with their memory and bandwidth; no torch, no driver.

`accelerators.tsv` is the table, one device a line. Makers of accelerators write GB and mean GiB, as
their own tools show: an "A100 80GB" has 81,920 MiB. `usable` is what those tools report as the
total (`smi`: nvidia-smi with ECC where it is on by default; rocm-smi, hl-smi, npu-smi), which may
be more or less than the marketed number; without a tool's number it is the marketed one in GiB.
`Metal` is the share of unified memory that macOS lets the GPU have by default. The bandwidth is the
data sheet's, decimal: an upper bound. What drivers, libraries and other programs take is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdover.errors import ConfigError
from holdover.units import format_bytes, parse_bytes

# Words that say who made it or how it is built, never which one it is.
_NOISE = frozenset(
    (
        *("nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "habana", "apple"),
        *("google", "cloud", "aws", "amazon", "huawei", "qualcomm", "gpu", "graphics", "card"),
        *("tensor", "core", "chip", "accelerator", "oam", "sxm", "sxm2", "sxm4", "sxm5"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
_FAMILIES = frozenset(("rtx", "gtx", "rx"))  # nobody needs to type these


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. `memory_bytes` is what it is sold with, `usable_bytes` what software sees."""

    name: str
    vendor: str
    memory_bytes: int
    usable_bytes: int
    bandwidth_bytes_s: int
    aliases: tuple[str, ...]
    source: str  # where `usable_bytes` is from; "marketed" where it equals `memory_bytes`
    note: str

    @property
    def unified(self) -> bool:
        """Whether processor and accelerator share the memory."""
        return self.source == "Metal" or "shared with the processor" in self.note


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """The whole table, in its order."""
    head, *lines = Path(__file__).with_name("accelerators.tsv").read_text().splitlines()
    columns = head.split("\t")
    return tuple(_parse(dict(zip(columns, line.split("\t"), strict=False))) for line in lines)


def find_accelerator(text: str, flag: str = "--gpu") -> Accelerator:
    """The accelerator that a person means by `text`: "4090", "a100-80gb", "NVIDIA H100 80GB HBM3".

    Raises ConfigError that lists the choices where several fit, or names like it where none does.
    """
    asked = _words(text)
    if not asked:
        raise ConfigError(flag, f"{text!r} names no accelerator; for example H100 or RTX 4090")
    table = accelerators()
    for same in (_same_words, _same_letters):
        exact = [one for one in table if any(same(asked, _words(n)) for n in _names(one))]
        if len(exact) == 1:
            return exact[0]
    fitting = [one for one in table if any({*asked} <= {*_words(n)} for n in _names(one))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        choices = ", ".join(f"{one.name} ({format_bytes(one.usable_bytes)})" for one in fitting)
        raise ConfigError(flag, f"{text!r} can mean several: {choices}")
    raise ConfigError(flag, f"no accelerator {text!r}; {_close(asked, table)}")


def _parse(row: dict[str, str]) -> Accelerator:
    memory_bytes = parse_bytes(row["memory"])
    usable = row["usable"]
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        memory_bytes=memory_bytes,
        usable_bytes=parse_bytes(usable) if usable else memory_bytes,
        bandwidth_bytes_s=int(row["GB/s"]) * 10**9,
        aliases=tuple(a.strip() for a in row["aliases"].split(";") if a.strip()),
        source=row["source"],
        note=row.get("note", ""),
    )


def _names(one: Accelerator) -> tuple[str, ...]:
    return (one.name, *one.aliases)


@cache
def _words(text: str) -> tuple[str, ...]:
    """Lower-case words without noise; "80 GB" and "80GiB" are one word, "rtx4090" is two."""
    text = re.sub(r"\((r|tm)\)", " ", text.lower().replace("_", " "))
    text = re.sub(r"(\d+)\s*(gib|gb|g)\b", r"\1gb", text)
    text = re.sub(r"\b(rtx|gtx|rx)(?=\d)", r"\1 ", text)
    return tuple(word for word in re.findall(r"[a-z0-9]+", text) if word not in _NOISE)


def _same_words(asked: Iterable[str], name: Iterable[str]) -> bool:
    return {*asked} == {*name} or {*asked} == {*name} - _FAMILIES


def _same_letters(asked: Iterable[str], name: Iterable[str]) -> bool:
    """However it is split into words: "m3max 64gb", "gaudi2", "4080super"."""
    letters = "".join(asked)
    return letters in ("".join(name), "".join(word for word in name if word not in _FAMILIES))


def _close(asked: Iterable[str], table: Iterable[Accelerator]) -> str:
    from difflib import get_close_matches

    text = " ".join(sorted(asked))
    by_words = {" ".join(sorted(_words(n))): one.name for one in table for n in _names(one)}
    close = dict.fromkeys(by_words[key] for key in get_close_matches(text, by_words, n=5))
    if close:
        return f"did you mean {', '.join(close)}?"
    return (
        f"{len({*by_words.values()})} are known, for example A100 80GB, RTX 4090 and MI300X; "
        "give --memory with its bytes instead, for example --memory 80GiB"
    )
