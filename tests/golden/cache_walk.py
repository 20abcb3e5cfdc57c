"""Every tensor that a cache object of transformers holds, each storage once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_in(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor reachable from `cache` by items and attributes."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", cache)]
    while waiting:
        path, value = waiting.pop()
        if value is None or isinstance(value, str | bytes | int | float | type | torch.dtype):
            continue
        if isinstance(value, torch.Tensor):
            key = value.untyped_storage().data_ptr()
            if value.numel() and key not in seen:
                seen.add(key)
                yield path, value
            continue
        if id(value) in seen or isinstance(value, torch.nn.Module) or callable(value):
            continue
        seen.add(id(value))
        waiting.extend(reversed(list(_inside(path, value))))


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))
    if is_dataclass(value):
        yield from ((f"{path}.{f.name}", getattr(value, f.name)) for f in fields(value))
    elif hasattr(value, "__dict__"):
        yield from ((f"{path}.{name}", item) for name, item in vars(value).items())
