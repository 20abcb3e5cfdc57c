"""vLLM's fp8 rows of latent attention, for sizing: nothing is stored in them here.

    fp8_ds_mla  | 512 latent dims in fp8 | 4 fp32 scales, one per 128 | 64 rope dims in bf16 |  656
    fp8_indexer | 128 index dims in fp8  | 1 fp32 scale               |                         132

`fp8_ds_mla` takes the planes latent and rope, and index rows as `fp8_indexer` has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.codecs.base import demand
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane
from holdover.spec.layout import Field
from holdover.units import exact_div

SCALED_DIMS = 128  # dims that share a scale


@dataclass(frozen=True, slots=True)
class LatentRows:
    """`scaled` planes are fp8 with scales, `plain` ones bf16; no other plane can be stored."""

    name: str
    scaled: tuple[str, ...]
    plain: tuple[str, ...] = ()
    serves: bool = False
    centres_keys: bool = False

    def fields(self, plane: Plane, block_tokens: int) -> tuple[Field, ...]:
        known = plane.name in self.scaled + self.plain
        demand(self.name, plane, known, f"planes named {', '.join(self.scaled + self.plain)}")
        axes, shape = ("head", "token", "dim"), (plane.heads, block_tokens, plane.dim)
        if plane.name in self.plain:
            return (Field("data", DType.BF16, axes, shape),)
        whole = plane.dim % SCALED_DIMS == 0
        demand(self.name, plane, whole, f"dims that are a multiple of {SCALED_DIMS}")
        scales = (*shape[:2], exact_div(plane.dim, SCALED_DIMS))
        return (
            Field("data", DType.FP8, axes, shape),
            Field("scale", DType.FP32, ("head", "token", "group"), scales),
        )


CODECS = {
    "fp8_ds_mla": LatentRows("fp8_ds_mla", scaled=("latent", "index"), plain=("rope",)),
    "fp8_indexer": LatentRows("fp8_indexer", scaled=("index",)),
}
