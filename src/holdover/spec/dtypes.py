"""The element types of KV fields and of weights, by the names used in flags and reports."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"  # e4m3: 4 bits of exponent, 3 of mantissa, no infinity
    INT8 = "int8"
    UINT8 = "uint8"

    @property
    def item_bytes(self) -> int:
        return {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "uint8": 1}[self.value]

    @property
    def torch_name(self) -> str:
        """`getattr(torch, dtype.torch_name)`: this room does not import torch.

        fp8 fields are viewed as their bits, since torch indexes no fp8 tensor.
        """
        names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
        return names.get(self, self.value)
