"""In which types the weights of a config are published: what is quantised, and in how many bits.

Read from `quantization_config` in the ways of transformers (fp8, mxfp4, awq, gptq, bitsandbytes,
compressed-tensors) and modelopt. Only matrices of attention, feed-forward and experts shrink;
embeddings, head, routers and towers stay as they are, and so does what the config names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from holdover.geometry.sizing.weights.base import ModelWeights, Part, Place, Role

_PLAIN = {
    "float32": "fp32", "float": "fp32", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16",
    "float16": "fp16", "half": "fp16", "fp16": "fp16",
}  # fmt: skip
_PLAIN_BITS = {"fp32": 32, "bf16": 16, "fp16": 16}
_SCALE_BITS = 16
_BLOCKS = frozenset((Role.MIXER, Role.DENSE, Role.EXPERTS, Role.SHARED))
# Formats that are of experts alone.
_EXPERTS_ONLY = frozenset(("mxfp4",))


@dataclass(frozen=True, slots=True)
class Stored:
    """A type and its bits an element, scales among them."""

    name: str
    bits: Fraction


@dataclass(frozen=True, slots=True)
class Form:
    """`quantised` is the type of most of what shrinks; `special` that of single places."""

    plain: Stored
    quantised: Stored | None = None
    roles: frozenset[Role] = _BLOCKS
    kept: frozenset[Place] = frozenset()
    special: Mapping[Place, Stored] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The type that most weights are in."""
        experts = self.special.get((None, Role.EXPERTS))
        if self.quantised is None:
            return min(self.special.values(), key=lambda s: s.bits, default=self.plain).name
        return self.quantised.name if experts is None else experts.name

    @property
    def is_quantised(self) -> bool:
        return self.quantised is not None or bool(self.special)

    def of(self, part: Part) -> Stored:
        for place in ((part.layer, part.role), (None, part.role)):
            if place in self.special:
                return self.special[place]
        if self.quantised is None or part.role not in self.roles:
            return self.plain
        own = ((part.layer, part.role), (None, part.role), (part.layer, None))
        return self.quantised if self.kept.isdisjoint(own) else self.plain

    def n_bytes(self, weights: ModelWeights) -> tuple[int, int]:
        """(all bytes, those that one token's step reads)."""
        total = sum((self.of(part).bits * part.count for part in weights.parts), Fraction(0))
        used = sum((self.of(part).bits * part.used for part in weights.parts), Fraction(0))
        return -(-total // 8), -(-used // 8)

    def text(self, weights: ModelWeights) -> str:
        """ "fp8: attention, experts; bf16: embedding, head" """
        roles: dict[str, dict[str, None]] = {}
        for one in weights.parts:
            roles.setdefault(self.of(one).name, {})[one.role.value] = None
        return "; ".join(f"{name}: {', '.join(sorted(found))}" for name, found in roles.items())


def form_of(config: Mapping[str, Any], stored_dtype: str | None) -> Form | None:
    """The form of a config's weights; None where it is in a way that is not known.

    `stored_dtype` is the config's own name of the type of what is not quantised.
    """
    plain = _PLAIN.get(stored_dtype or "bfloat16")
    if plain is None:
        return None
    form = Form(Stored(plain, Fraction(_PLAIN_BITS[plain])))
    found = quantisation(config)
    if found is None:
        return form
    if not isinstance(found, Mapping):
        return None
    quantised = _stored(found)
    special = {**_special(found), **_expert_type(config)}
    if quantised is None:
        return Form(form.plain, special=special) if special else None
    roles = frozenset((Role.EXPERTS,)) if quantised.name in _EXPERTS_ONLY else _BLOCKS
    return Form(form.plain, quantised, roles, _kept(found, config), special)


def quantisation(config: Mapping[str, Any]) -> Any:
    """The object that says how the weights are quantised, wherever it stands."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for name in ("quantization_config", "compression_config"):
            if found := part.get(name):
                return found
    return None


def _stored(found: Mapping[str, Any]) -> Stored | None:
    words = [str(found.get(k) or "").lower() for k in ("quant_method", "quant_algo", "format")]
    method = " ".join(words)
    if "mixed_precision" in method:  # the layers that are named have another type
        return Stored("fp8", Fraction(8)) if "fp8" in words[0] else _of_groups(found)
    for name in ("nvfp4", "mxfp4", "mxfp8", "fp8"):
        if name in method:
            return _NAMED[name](found)
    if found.get("load_in_4bit") is True:
        scale = Fraction(8, 64) if found.get("bnb_4bit_use_double_quant") else Fraction(32, 64)
        return Stored("int4", 4 + scale)
    if found.get("load_in_8bit") is True:
        return Stored("int8", Fraction(8))
    bits = found.get("bits", found.get("w_bit"))
    if isinstance(bits, int) and not isinstance(bits, bool):
        zeros = bits if found.get("zero_point", True) else 0
        return _grouped(bits, found.get("group_size", found.get("q_group_size")), zeros)
    return _of_groups(found)


def _fp8(found: Mapping[str, Any]) -> Stored | None:
    block = found.get("weight_block_size")
    if block is None:
        return Stored("fp8", Fraction(8))
    if not isinstance(block, list) or len(block) != 2 or not all(_is_count(n) for n in block):
        return None
    return Stored("fp8", 8 + Fraction(32, block[0] * block[1]))


_NAMED: dict[str, Callable[[Mapping[str, Any]], Stored | None]] = {
    "nvfp4": lambda found: Stored("nvfp4", Fraction(9, 2)),  # a byte for 16 elements
    "mxfp4": lambda found: Stored("mxfp4", Fraction(17, 4)),  # a byte for 32
    "mxfp8": lambda found: Stored("fp8", Fraction(33, 4)),
    "fp8": _fp8,
}


def _of_groups(found: Mapping[str, Any]) -> Stored | None:
    """compressed-tensors and modelopt: the weights of the first group."""
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits: Any = weights.get("num_bits")
    size: Any = weights.get("group_size")
    if weights.get("type") == "float":
        if bits == 4:
            return Stored("nvfp4", Fraction(9, 2)) if size == 16 else _NAMED["mxfp4"](found)
        return Stored("fp8", Fraction(8)) if bits == 8 else None
    if not _is_count(bits):
        return None
    return _grouped(int(bits), size, 0 if weights.get("symmetric", True) else int(bits))


def _grouped(bits: int, group_size: Any, zero_bits: int) -> Stored | None:
    if bits not in (2, 3, 4, 8):
        return None
    if group_size is None or group_size == -1:  # a scale for each row
        return Stored(f"int{bits}", Fraction(bits))
    if not _is_count(group_size):
        return None
    return Stored(f"int{bits}", bits + Fraction(_SCALE_BITS + zero_bits, group_size))


def _kept(found: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[Place]:
    from holdover.geometry.sizing.weights.modules import places_of

    names: list[Any] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules"):
        value = found.get(key)
        names += value if isinstance(value, list) else []
    if str(found.get("quant_algo")).lower() == "mixed_precision":
        return frozenset()  # the names are of what has none of the special types
    text = config.get("text_config")
    model_type = (text if isinstance(text, Mapping) else config).get("model_type")
    beside = str(model_type).startswith("gemma4")  # a dense part stands beside the experts
    return frozenset(p for name in names for p in places_of(str(name), beside))


def _special(found: Mapping[str, Any]) -> dict[Place, Stored]:
    """modelopt's list of layers, each with its type."""
    from holdover.geometry.sizing.weights.modules import place_of

    layers = found.get("quantized_layers")
    special: dict[Place, Stored] = {}
    if isinstance(layers, Mapping):
        for name, how in layers.items():
            stored = _stored(how) if isinstance(how, Mapping) else None
            place = place_of(str(name))
            if stored is not None and place is not None:
                special[place] = stored
    return special


def _expert_type(config: Mapping[str, Any]) -> dict[Place, Stored]:
    """DeepSeek-V4 publishes its experts in 4 bits, with a scale for 32, beside fp8."""
    if config.get("expert_dtype") != "fp4":
        return {}
    return {(None, Role.EXPERTS): Stored("mxfp4", Fraction(17, 4))}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
