"""MXFP4 (OCP Microscaling Formats 1.0): 32 elements of 4 bits under one power of two.

gpt-oss has a layer's experts as NAME_blocks, bytes [experts, outputs, blocks, 16] with the earlier
element in the low bits, and NAME_scales [experts, outputs, blocks], exponents over 127. Here they
are one tensor NAME [experts, inputs, outputs], as the model's class has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdover.errors import ModelFileError
from holdover.weights.base import TensorInfo

if TYPE_CHECKING:
    import torch

MXFP4 = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of FP4 (E2M1); the fourth bit is the sign


def join_parts(path: Path, infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The table with one entry for each pair; raises for a half, or halves that do not agree."""
    joined = dict(infos)
    for name in [name for name, info in infos.items() if _is_blocks(name, info)]:
        whole = name.removesuffix(BLOCKS)
        blocks, scales = infos[name], infos.get(whole + SCALES)
        if scales is None:
            raise ModelFileError(path, f"has tensor {name} without {whole}{SCALES}")
        if len(blocks.shape) != 4 or blocks.shape != (*scales.shape, _BLOCK_BYTES):
            raise ModelFileError(
                path,
                f"tensor {name} of shape {list(blocks.shape)} and its scales of shape "
                f"{list(scales.shape)} are not experts in {MXFP4}",
            )
        experts, outputs, n_blocks, _ = blocks.shape
        shape = (experts, n_blocks * 2 * _BLOCK_BYTES, outputs)
        n_bytes = blocks.n_bytes + scales.n_bytes
        joined[whole] = TensorInfo(shape, MXFP4, 2 * blocks.n_elements, n_bytes)
        del joined[name], joined[whole + SCALES]
    return joined


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[experts, inputs, outputs], a view of outputs before inputs; one expert after the other."""
    import torch

    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)], dtype=dtype)
    made = torch.empty(*blocks.shape, 2, dtype=dtype)
    for expert, packed, exponents in zip(made, blocks, scales, strict=True):
        expert[..., 0] = values[(packed & 15).int()]
        expert[..., 1] = values[(packed >> 4).int()]
        factors = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
        expert *= factors.to(dtype)[..., None, None]
    return made.flatten(2).mT


def _is_blocks(name: str, info: TensorInfo) -> bool:
    return name.endswith(BLOCKS) and info.dtype_name == "U8"
