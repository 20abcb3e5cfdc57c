"""Gumbel noise as a function of (seed, position, token id): nothing is drawn, so nothing has state.

The token with the largest score + noise is distributed as softmax(scores), and a token's noise does
not depend on which other tokens there are. So a small difference of the scores (another batch, a
reused prefix) changes a draw only where two sums nearly tie. Importing this imports no torch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[int, int]
"""Two int32, the noise's own for one token of one answer."""

_ROUNDS = ((16, 0x7FEB352D), (15, 0x2C1B3C6D), (15, 0x297A2D39))  # shift, odd factor
_LAST_SHIFT = 14
_BELOW_ONE = 1 - 2.0**-24  # the largest fp32 below 1


def noise_key(seed: int, position: int) -> Key:
    """`seed` is taken modulo 2**64; `position` counts the tokens before the one to be chosen."""
    text = struct.pack("<QQ", seed % 2**64, position)
    key: Key = struct.unpack("<ii", hashlib.blake2b(text, digest_size=8).digest())
    return key


def add_noise(scores: Tensor, ids: Tensor, keys: Sequence[Key]) -> Tensor:
    """`scores` [rows, n] float32 plus each row's noise for its tokens, in place.

    `ids` int32 [rows, n], or [1, n] where all rows have the same. Scratch: 12 bytes an element.
    """
    import torch

    first, second = ids.new_tensor(keys).unsqueeze(-1).unbind(1)
    x = ids ^ first
    shifted = torch.empty_like(x)
    for number, (shift, factor) in enumerate(_ROUNDS):
        _xor_shifted(x, shift, shifted)
        x.mul_(factor)
        if number == 0:
            x.add_(second)  # else rows whose first halves are near would share their noise
    _xor_shifted(x, _LAST_SHIFT, shifted)
    del shifted
    # Small values keep all their bits as fp32: they are what makes an unlikely token win.
    uniform = x.bitwise_and_(0x7FFFFFFF).float()
    del x
    uniform.mul_(2.0**-31 * _BELOW_ONE).add_(2.0**-32)  # in (0, 1)
    return scores.sub_(uniform.neg_().log1p_().neg_().log_())


def _xor_shifted(x: Tensor, shift: int, scratch: Tensor) -> None:
    """x ^= x >> shift, on the bits as they are: int32 would copy the sign into them."""
    import torch

    torch.bitwise_right_shift(x, shift, out=scratch)
    x.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
