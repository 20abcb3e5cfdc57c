"""The element types of KV fields and of weights, by the names used in flags and reports."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    UINT8 = "uint8"

    @property
    def item_bytes(self) -> int:
        return {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "uint8": 1}[self.value]

    @property
    def torch_name(self) -> str:
        """`getattr(torch, dtype.torch_name)`: this room does not import torch."""
        return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(self, self.value)
