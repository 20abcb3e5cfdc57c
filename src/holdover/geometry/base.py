"""What a model is made of, read once from its configuration.

`read_geometry` turns a Hugging Face style config into a frozen `Geometry`: the cache of every
layer, and the numbers that planning and the forward pass need. One file per family, named
after it, in `families/` is a `FamilyModule`. Models that are sized but not served: `sizing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol, cast

from holdover.errors import UnsupportedModelError
from holdover.geometry.experts import WIDE, Experts, expert_tensors
from holdover.geometry.latent import Latent, latent_linears
from holdover.registry import load_all, load_plugin
from holdover.spec.dtypes import DType
from holdover.spec.layers import LayerSpec
from holdover.spec.residency import sink_place

_FAMILIES = "holdover.geometry.families"

RopeKind = Literal["default", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first-half/second-half pairs of `dim` elements of a head.

    `factor` stretches the context; the fields after it are read by "llama3" and "yarn" only.
    `frequency_divisors`, from GGUF files, divides each of the dim/2 frequencies on its own.
    """

    kind: RopeKind
    theta: float
    dim: int
    factor: float = 1.0
    original_context_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    frequency_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A decoder of one family. Sizes count elements, contexts count tokens.

    With `latent`, heads are cached as one latent row, and `head_dim` is a query's before it is
    absorbed. With `experts`, some layers have a mixture in place of the gated MLP.
    """

    family: str
    architecture: str
    layers: tuple[LayerSpec, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    query_heads: int
    kv_heads: int
    head_dim: int  # the widest over layers
    max_context_tokens: int
    tied_embeddings: bool
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]  # per layer, its index in `ropes`
    norm_eps: float
    activation: Activation
    attention_scale: float
    attention_softcap: float = 0.0  # 0: none
    final_softcap: float = 0.0  # 0: none
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    learned_sinks: bool = False  # per query head, one more term of its softmax
    latent: Latent | None = None
    experts: Experts | None = None
    stored_dtype: str | None = None  # the config's own name, for example "bfloat16"

    @property
    def query_width(self) -> int:
        return self.query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def sink_turns(self) -> tuple[tuple[int, int] | None, ...]:
        """Per layer, how a query that meets sinks is turned: by a rope, to its place but to no
        later one than this. None where there are no sinks."""
        places = (sink_place(layer.residency) for layer in self.layers)
        return tuple(
            None if place is None else (rope, place)
            for rope, place in zip(self.layer_ropes, places, strict=True)
        )


class FamilyModule(Protocol):
    """What a family's file offers. `MODEL_TYPES` maps a `model_type` to its architecture name."""

    MODEL_TYPES: Mapping[str, str]

    def read(self, config: Mapping[str, Any], model_type: str) -> Geometry: ...

    def layer_tensors(self, geometry: Geometry) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one layer's stored tensors, by the name after `model.layers.N.`."""

    def resident_norm_elements(self, geometry: Geometry) -> tuple[int, int]:
        """Elements of one layer's norm weights and learned sinks in memory: (in the model's dtype,
        in fp32)."""


def read_geometry(config: Mapping[str, Any]) -> Geometry:
    """Geometry of a config in transformers 4 or 5 style.

    Raises UnsupportedModelError for an architecture or a feature that no family serves, naming
    it, and ConfigError for a field that is missing or cannot be right.
    """
    families = {name: cast(FamilyModule, m) for name, m in load_all(_FAMILIES).items()}
    model_type = _model_type(config, families)
    for family in families.values():
        if model_type is not None and model_type in family.MODEL_TYPES:
            return family.read(config, model_type)
    raise UnsupportedModelError(
        f"architecture {_name(config)} is not supported; supported are: {_supported(families)}"
    )


def supported_architectures() -> tuple[str, ...]:
    """Names as they appear in a config's `architectures`."""
    families = [cast(FamilyModule, module) for module in load_all(_FAMILIES).values()]
    return tuple(name for family in families for name in family.MODEL_TYPES.values())


def expected_tensors(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Shape of every stored tensor that the model needs, by Hugging Face name."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (geometry.vocab_size, geometry.hidden_size),
        "model.norm.weight": (geometry.hidden_size,),
    }
    if not geometry.tied_embeddings:
        shapes["lm_head.weight"] = (geometry.vocab_size, geometry.hidden_size)
    same = dict(_family(geometry).layer_tensors(geometry))
    for index in range(len(geometry.layers)):
        layer = _linear_tensors(geometry, index) | same
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def planned_weights_bytes(geometry: Geometry, dtype: DType) -> int:
    """Bytes that the loaded model holds, to the byte; `Model.weights_nbytes` equals this.

    Fusing q, k, v and gate, up moves bytes and adds none. The weights of the q/k norms are spread
    over the heads they apply to; rotary frequencies and routers are held in fp32.
    """
    matrices = routers = 0
    for index in range(len(geometry.layers)):
        shapes = _linear_tensors(geometry, index)
        routers += sum(prod(shapes[name]) for name in WIDE if name in shapes)
        matrices += sum(map(prod, shapes.values()))
    norms, wide_norms = _family(geometry).resident_norm_elements(geometry)
    n_layers = len(geometry.layers)
    embeddings = geometry.vocab_size * geometry.hidden_size * (2 - geometry.tied_embeddings)
    last_norm, last_wide = (0, geometry.hidden_size) if wide_norms else (geometry.hidden_size, 0)
    elements = embeddings + last_norm + matrices - routers + n_layers * norms
    wide = last_wide + n_layers * wide_norms + routers
    wide += sum(rope.dim // 2 for rope in geometry.ropes)
    return elements * dtype.item_bytes + wide * DType.FP32.item_bytes


def _family(geometry: Geometry) -> FamilyModule:
    return cast(FamilyModule, load_plugin(_FAMILIES, geometry.family))


def _linear_tensors(geometry: Geometry, layer: int) -> dict[str, tuple[int, ...]]:
    """Matrices and biases of one layer, by the name after `model.layers.N.`."""
    g = geometry
    if g.latent is None:
        attention = _attention_linears(g)
    else:
        attention = latent_linears(g.latent, g.hidden_size, g.query_heads, g.output_bias)
    if g.experts is None or not g.experts.mixes(layer):
        return _with_biases(attention | _mlp_linears(g))
    return _with_biases(attention) | expert_tensors(g.experts, g.hidden_size)


def _attention_linears(g: Geometry) -> dict[str, tuple[int, int, bool]]:
    return {
        "self_attn.q_proj": (g.query_width, g.hidden_size, g.qkv_bias),
        "self_attn.k_proj": (g.kv_width, g.hidden_size, g.qkv_bias),
        "self_attn.v_proj": (g.kv_width, g.hidden_size, g.qkv_bias),
        "self_attn.o_proj": (g.hidden_size, g.query_width, g.output_bias),
    }


def _mlp_linears(g: Geometry) -> dict[str, tuple[int, int, bool]]:
    return {
        "mlp.gate_proj": (g.intermediate_size, g.hidden_size, g.mlp_bias),
        "mlp.up_proj": (g.intermediate_size, g.hidden_size, g.mlp_bias),
        "mlp.down_proj": (g.hidden_size, g.intermediate_size, g.mlp_bias),
    }


def _with_biases(linears: Mapping[str, tuple[int, int, bool]]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def _model_type(config: Mapping[str, Any], families: Mapping[str, FamilyModule]) -> str | None:
    """The config's model_type, or the one that its first known architecture stands for."""
    model_type = config.get("model_type")
    if model_type:
        return str(model_type)
    known = {
        architecture: model_type
        for family in families.values()
        for model_type, architecture in family.MODEL_TYPES.items()
    }
    return next((known[name] for name in _architectures(config) if name in known), None)


def _architectures(config: Mapping[str, Any]) -> list[str]:
    """What the config calls itself; nothing of another type is a name."""
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _name(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    parts = [*_architectures(config), f"(model_type {model_type})" if model_type else ""]
    return " ".join(part for part in parts if part) or "without a name (no model_type)"


def _supported(families: Mapping[str, FamilyModule]) -> str:
    return ", ".join(
        f"{architecture} ({model_type})"
        for family in families.values()
        for model_type, architecture in family.MODEL_TYPES.items()
    )
