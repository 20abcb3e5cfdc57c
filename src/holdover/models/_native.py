"""A decoder in C++: one call computes a step, from token ids to logits.

Weights lie in one allocation, packed as they are read; so do the buffers of a step. The residual
stream and all that stands between products is fp32, whatever the weights are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdover.cache.arena import host_bytes
from holdover.geometry.base import Geometry, expected_tensors
from holdover.kernels._tapped import TappedStep
from holdover.kernels._watched import WatchedStep
from holdover.kernels.base import AttentionStep
from holdover.kernels.native.backend import Step
from holdover.models import _rope
from holdover.models._blueprint import Blueprint, Part
from holdover.models._decoder import embedding_scale
from holdover.spec.dtypes import DType
from holdover.spec.groups import CacheSpec
from holdover.spec.limits import Limits
from holdover.weights.base import Checkpoint, require_tensors

_THREADS = 2  # parts in flight: hides the reading of one behind the packing of another
_NO_PLACE = 2**31 - 1  # positions are turned as they are
_PIECE_ELEMENTS = 2**20  # converted at a time on the way to panels


@dataclass(frozen=True, slots=True)
class NativeDecoder:
    """See `Model`. The tensors are kept since C++ has only their addresses."""

    geometry: Geometry
    dtype: DType
    element: str
    weights: Tensor
    buffers: Tensor
    decoder: Any
    logits: Tensor  # [most rows, vocab], a view of the buffers
    residual: Tensor  # [most tokens, width], too

    @property
    def weights_nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def buffers_nbytes(self) -> int:
        return self.buffers.nbytes

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        logit_rows: Tensor,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """The logits are of this step until the next."""
        if hidden is not None:
            return self._with_known(token_ids, positions, step, logit_rows, hidden)
        watched = step if isinstance(step, WatchedStep) else None
        tapped = step if isinstance(step, TappedStep) else None
        inner = step.step if isinstance(step, (WatchedStep, TappedStep)) else step
        assert isinstance(inner, Step), "a native decoder works on native steps"
        g = self.geometry
        n_taken = 0 if tapped is None else len(token_ids)
        taken = torch.empty(len(g.layers), n_taken, g.query_heads + g.kv_heads, g.head_dim)
        wrong = np.zeros(len(token_ids), dtype=np.bool_)
        self.decoder.forward(
            token_ids.data_ptr(),
            positions.data_ptr(),
            inner.groups,
            logit_rows.data_ptr(),
            len(logit_rows),
            () if watched is None else watched.layers,
            torch.inf if watched is None else watched.most,
            wrong.ctypes.data,
            0 if tapped is None else taken.data_ptr(),
        )
        if tapped is not None:
            for layer, rows in enumerate(taken):
                tapped.take("q", layer, rows[:, : g.query_heads])
                tapped.take("k", layer, rows[:, g.query_heads :])
        if watched is not None:
            watched.note(wrong)
        return self.logits[: len(logit_rows)]

    def _with_known(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        logit_rows: Tensor,
        hidden: Tensor,
    ) -> Tensor:
        """Known rows stand behind those of the step's tokens, as if they were of such."""
        n_rows, n_tokens = len(logit_rows), len(token_ids)
        n_all = n_tokens + len(hidden) - n_rows
        assert n_all <= len(self.residual), "a step is larger than the buffers"
        self.residual[n_tokens:n_all] = hidden[n_rows:]
        rows = torch.cat([logit_rows, torch.arange(n_tokens, n_all)])
        logits = self.forward(token_ids, positions, step, rows)
        torch.index_select(self.residual, 0, logit_rows, out=hidden[:n_rows])
        return logits


def load_native(
    checkpoint: Checkpoint, blueprint: Blueprint, dtype: DType, limits: Limits
) -> NativeDecoder:
    """Load the weights, and make room for steps within the limits.

    Raises ModelFileError naming a tensor that is missing or of another shape.
    """
    return with_weights(load_weights(checkpoint, blueprint), blueprint, dtype, limits)


def load_weights(checkpoint: Checkpoint, blueprint: Blueprint) -> Tensor:
    """All parts where the blueprint has them, as bytes."""
    require_tensors(checkpoint, expected_tensors(blueprint.geometry))
    weights = host_bytes(blueprint.nbytes, "weights")
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(
            lambda part: _fill(checkpoint, blueprint, part, weights), blueprint.parts.values()
        ):
            pass
    return weights


def with_weights(
    weights: Tensor, blueprint: Blueprint, dtype: DType, limits: Limits
) -> NativeDecoder:
    vocab_size, most_rows = blueprint.geometry.vocab_size, limits.max_sequences
    buffers = host_bytes(blueprint.buffer_bytes(limits), "buffers of a step")
    offset = blueprint.numbers.logits_offset(limits.step_tokens, most_rows)
    logits = buffers[offset:].view(torch.float32)[: most_rows * vocab_size]
    width = blueprint.geometry.hidden_size
    residual = buffers.view(torch.float32)[: limits.step_tokens * width]  # first of C++'s Buffers
    return NativeDecoder(
        geometry=blueprint.geometry,
        dtype=dtype,
        element=blueprint.element,
        weights=weights,
        buffers=buffers,
        decoder=_decoder(blueprint, dtype, weights, limits, buffers),
        logits=logits.view(most_rows, vocab_size),
        residual=residual.view(limits.step_tokens, width),
    )


def _fill(checkpoint: Checkpoint, blueprint: Blueprint, part: Part, weights: Tensor) -> None:
    room = weights[part.offset : part.offset + part.nbytes]
    if part.inputs:
        _pack(checkpoint, blueprint, part, room)
        return
    if part.rope is not None:
        values = [_rope.frequencies(blueprint.geometry.ropes[part.rope])]
    else:
        values = [checkpoint.load(name, torch.float32) for name in part.sources]
    stored = torch.cat(values)
    if part.is_norm and blueprint.family.norms_from_one:
        stored = stored + 1.0
    room.view(torch.float32).copy_(stored)


def _pack(checkpoint: Checkpoint, blueprint: Blueprint, part: Part, room: Tensor) -> None:
    """In pieces: of a whole tensor there is only what the file's reader made of it."""
    native, element, first = blueprint.native, blueprint.element, 0
    for name in part.sources:
        rows = checkpoint.load(name, _read_as(checkpoint, name, element))
        for piece in torch.split(rows, max(1, _PIECE_ELEMENTS // part.inputs)):
            wide = piece.to(torch.float32).contiguous()
            native.pack(
                element, wide.data_ptr(), len(wide), part.outputs, part.inputs, first,
                room.data_ptr(),
            )  # fmt: skip
            first += len(wide)
        del rows


def _read_as(checkpoint: Checkpoint, name: str, element: str) -> torch.dtype:
    """16 bits where they lose nothing of what will be stored."""
    if element == "bf16" or checkpoint.tensors[name].dtype_name == "BF16":
        return torch.bfloat16
    return torch.float16 if checkpoint.tensors[name].dtype_name == "F16" else torch.float32


def _decoder(
    blueprint: Blueprint, dtype: DType, weights: Tensor, limits: Limits, buffers: Tensor
) -> Any:
    native, g, parts = blueprint.native, blueprint.geometry, blueprint.parts

    def address(name: str) -> int:
        return weights.data_ptr() + parts[name].offset if name in parts else 0

    def matrix(name: str) -> Any:
        part = parts[name]
        return native.Matrix(
            blueprint.element, part.outputs, part.inputs, address(name), address(f"{name}_bias")
        )

    matrices = ("qkv", "output", "gate", "up", "down")
    norms = (
        "attention_norm", "attention_post_norm", "query_norm", "key_norm", "mlp_norm",
        "mlp_post_norm",
    )  # fmt: skip
    groups = CacheSpec.of(g.layers, block_tokens=1).group_of_layer
    layers = [
        native.Layer(
            **{name: matrix(f"{i}.{name}") for name in matrices},
            **{name: address(f"{i}.{name}") for name in norms},
            rope=g.layer_ropes[i],
            sink_rope=-1 if turn is None else len(g.ropes) + blueprint.sink_ropes.index(turn),
            group=groups[i],
            storage=i,
        )
        for i, turn in enumerate(g.sink_turns)
    ]
    ropes = [(rope, _NO_PLACE) for rope in range(len(g.ropes))] + list(blueprint.sink_ropes)
    head = matrix("head")
    return native.Decoder(
        numbers=blueprint.numbers,
        embedding=head if g.tied_embeddings else matrix("embedding"),
        head=head,
        norm=address("norm"),
        norm_eps=g.norm_eps,
        embedding_scale=embedding_scale(g, blueprint.family, dtype),
        attention_scale=g.attention_scale,
        attention_softcap=g.attention_softcap,
        final_softcap=g.final_softcap,
        activation=g.activation,
        max_tokens=limits.step_tokens,
        max_rows=limits.max_sequences,
        buffers=buffers.data_ptr(),
        ropes=[(address(f"rope.{i}"), g.ropes[i].attention_factor, last) for i, last in ropes],
        layers=layers,
    )
