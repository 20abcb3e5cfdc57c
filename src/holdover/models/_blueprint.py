"""Where the weights of a natively computed decoder lie, and what its steps take beside them.

A blueprint is made from the geometry alone, so the plan states the bytes that loading allocates.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from holdover.geometry.base import Geometry, expected_tensors
from holdover.models.base import Family, family_of
from holdover.spec.limits import Limits
from holdover.units import round_up

_LINE_BYTES = 64
_FP32_BYTES = 4
_INT64_BYTES = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Stored tensors under each other: [outputs, inputs] in panels, or a vector in fp32.

    Vectors have no inputs. `rope` is whose frequencies a vector holds, in place of tensors.
    """

    sources: tuple[str, ...]
    outputs: int
    inputs: int
    offset: int
    nbytes: int
    is_norm: bool = False
    rope: int | None = None


@dataclass(frozen=True, slots=True)
class Blueprint:
    """`parts` by name: "embedding", "3.qkv", "3.qkv_bias", "3.attention_norm", "rope.0" ..."""

    native: ModuleType
    geometry: Geometry
    family: Family
    element: str
    parts: Mapping[str, Part]
    nbytes: int

    @property
    def numbers(self) -> Any:
        """The sizes that C++ works with."""
        g = self.geometry
        return self.native.Numbers(
            hidden=g.hidden_size,
            inner=g.intermediate_size,
            vocab=g.vocab_size,
            query_heads=g.query_heads,
            kv_heads=g.kv_heads,
            head_dim=g.head_dim,
            ropes=len(g.ropes) + len(self.sink_ropes),
            sink_queries=bool(self.sink_ropes),
            element=self.element,
        )

    @property
    def sink_ropes(self) -> tuple[tuple[int, int], ...]:
        """The different ones of the geometry's `sink_turns`, in C++ after the model's ropes."""
        return tuple(dict.fromkeys(turn for turn in self.geometry.sink_turns if turn is not None))

    def buffer_bytes(self, limits: Limits) -> int:
        """What a step takes beside weights, cache and the kernels' workspace: one allocation."""
        n_bytes: int = self.numbers.buffer_bytes(limits.step_tokens, limits.max_sequences)
        return n_bytes

    def input_bytes(self, limits: Limits) -> int:
        """Token ids, positions and rows of logits; which tokens are damaged."""
        return _INT64_BYTES * (2 * limits.step_tokens + limits.max_sequences) + limits.step_tokens

    @classmethod
    def of(cls, native: ModuleType, geometry: Geometry, element: str) -> Blueprint:
        """`element` is how matrices are stored: fp32, bf16 or int8."""
        family = family_of(geometry)
        drawn = _Drawing(native, geometry, element, {})
        drawn.embeddings()
        for layer in range(len(geometry.layers)):
            drawn.layer(layer, family)
        drawn.vector("norm", "model.norm.weight", is_norm=True)
        for index, rope in enumerate(geometry.ropes):
            drawn.add(f"rope.{index}", (), rope.dim // 2, 0, rope=index)
        return cls(native, geometry, family, element, drawn.parts, drawn.nbytes)


@dataclass(slots=True)
class _Drawing:
    """Parts one behind the other."""

    native: ModuleType
    geometry: Geometry
    element: str
    parts: dict[str, Part]
    shapes: Mapping[str, tuple[int, ...]] = ()  # type: ignore[assignment]
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.shapes = expected_tensors(self.geometry)

    def add(
        self, name: str, sources: tuple[str, ...], outputs: int, inputs: int, **more: Any
    ) -> None:
        nbytes = outputs * _FP32_BYTES
        if inputs:
            nbytes = self.native.matrix_bytes(self.element, outputs, inputs)
        self.parts[name] = Part(sources, outputs, inputs, self.nbytes, nbytes, **more)
        self.nbytes += round_up(nbytes, _LINE_BYTES)

    def matrix(self, name: str, *sources: str) -> None:
        """With its bias, where the model has one."""
        shapes = [self.shapes[f"{source}.weight"] for source in sources]
        outputs = sum(shape[0] for shape in shapes)
        self.add(name, tuple(f"{source}.weight" for source in sources), outputs, shapes[0][1])
        biases = tuple(f"{source}.bias" for source in sources)
        if biases[0] in self.shapes:
            self.add(f"{name}_bias", biases, outputs, 0)

    def vector(self, name: str, source: str, is_norm: bool) -> None:
        self.add(name, (source,), self.shapes[source][0], 0, is_norm=is_norm)

    def embeddings(self) -> None:
        """Tied, they are one matrix, of which a row is looked up and which makes the logits."""
        if self.geometry.tied_embeddings:
            self.matrix("head", "model.embed_tokens")
        else:
            self.matrix("embedding", "model.embed_tokens")
            self.matrix("head", "lm_head")

    def layer(self, index: int, family: Family) -> None:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.matrix(f"{index}.qkv", *(f"{attention}.{part}_proj" for part in "qkv"))
        self.matrix(f"{index}.output", f"{attention}.o_proj")
        for part in ("gate", "up", "down"):
            self.matrix(f"{index}.{part}", f"{mlp}.{part}_proj")
        norms = {
            "attention_norm": "input_layernorm",
            "attention_post_norm": family.attention_post_norm,
            "mlp_norm": family.mlp_norm,
            "mlp_post_norm": family.mlp_post_norm,
        }
        if self.geometry.qk_norm:
            norms |= {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
        for name, stored in norms.items():
            if stored is not None:
                self.vector(f"{index}.{name}", f"{prefix}.{stored}.weight", is_norm=True)


def refusal(geometry: Geometry) -> str | None:
    """Why the native decoder does not compute this model, in words; None: it does."""
    g = geometry
    if g.latent is not None:
        return "it takes keys and values, not latents"
    if g.experts is not None:
        return "it takes one MLP a layer, not experts"
    if g.learned_sinks:
        return "it takes no learned sinks"
    if any(rope.dim != g.head_dim for rope in g.ropes):
        return "it turns whole heads"
    if any(plane.dim != g.head_dim for layer in g.layers for plane in layer.planes):
        return "it takes keys and values as wide as queries"
    if any(layer.shares_with is not None for layer in g.layers):
        return "it takes layers that each store their own keys and values"
    return None
