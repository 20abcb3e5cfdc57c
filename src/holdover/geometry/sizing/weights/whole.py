"""All matrices of a model: layers, embeddings, what stands beside them, and towers.

Norms and biases are not counted: the result is a little low, by less than one percent on every
published model that transformers can build. A structure that is not known, or a width that the
file does not state, gives None, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdover.errors import ConfigError
from holdover.geometry.sizing import names
from holdover.geometry.sizing.layer_lists import layer_count
from holdover.geometry.sizing.mechanisms.base import Layer
from holdover.geometry.sizing.patterns import read_kinds
from holdover.geometry.sizing.reader import Reader
from holdover.geometry.sizing.sharing import storing_layers
from holdover.geometry.sizing.unwrap import text_reader
from holdover.geometry.sizing.weights.base import ModelWeights, Part, Role, part
from holdover.geometry.sizing.weights.feed_forward import INNER, feed_forward
from holdover.geometry.sizing.weights.mixers import mixer
from holdover.geometry.sizing.weights.towers import tower

_VOCABULARY = ("vocab_size", "padded_vocab_size", "text_vocab_size")
# Where nothing is said: types whose head is the embedding.
_TIED = frozenset(
    ("gpt2", "gpt_bigcode", "bloom", "falcon", "mpt", "opt", "gpt_neo", "t5", "bart", "whisper",
     "recurrent_gemma", "minicpm")
)  # fmt: skip
# Fields by whose name a list or an object may hold another value for each layer.
_OF_EACH = ("head", "layer", "ratio", "attn", "attention", "config", "dim", "rank", "window")
_LEARNED_POSITIONS = frozenset(("gpt2", "gpt_bigcode", "gpt_neo", "opt", "biogpt"))
# Structures of their own, which nothing here counts.
_UNKNOWN = (
    "zamba_", "rwkv7", "xlstm", "openelm", "nemotron-nas", "decilm", "longcat", "aria_text", "beam",
    "bert", "big_bird", "bigbird", "camembert", "data2vec", "doge", "dory", "electra", "ernie_",
    "fsmt", "git_", "glmasr", "hrm_text", "hy_v4", "jetmoe", "led_", "megatron", "moshi", "moss_",
    "nllb", "pegasus_", "plbart", "rembert", "roberta", "roc_bert", "roformer", "switch",
    "voxtral_realtime", "xlm", "xmod",
)  # fmt: skip


def count_weights(
    config: Mapping[str, Any], assume: Mapping[str, str] | None = None
) -> ModelWeights | None:
    """Matrices of the whole model; None where its structure is not one of those known here."""
    return weights_of(text_reader(config, dict(assume or {})), config)


def weights_of(reader: Reader, config: Mapping[str, Any]) -> ModelWeights | None:
    """The same of a text model's reader; `config` is the whole file."""
    types = (reader.model_type, config.get("model_type"))
    if not reader.known or any(f"{one}_".startswith(_UNKNOWN) for one in types):
        return None
    try:
        both = reader.flag("is_encoder_decoder")
        parts = _encoder_decoder(reader) if both else _decoder(reader, config)
        if parts is None:
            return None
        towers, missing = tower(config, reader.integer(*names.HIDDEN))
    except (ConfigError, IndexError):
        return None  # a field that only this count needs; the cache does not
    return ModelWeights((*parts, *towers), missing)


def _decoder(reader: Reader, config: Mapping[str, Any]) -> tuple[Part, ...] | None:
    n_layers = layer_count(reader)
    hidden = reader.integer(*names.HIDDEN)
    parts = list(_embeddings(reader, config, hidden))
    own = storing_layers(reader, n_layers)
    alike = not any(
        isinstance(value, list | tuple | dict) and any(word in name for word in _OF_EACH)
        for name, value in reader.values.items()
    )
    known: dict[tuple[str, bool], int | None] = {}
    for index, kind in enumerate(read_kinds(reader, n_layers)):
        layer = Layer(index, n_layers, kind)
        same = kind, index in own
        if not alike or same not in known:
            known[same] = mixer(reader, layer, hidden, index in own)
        if (count := known[same]) is None:
            return None
        parts.append(part(Role.MIXER, index, count))
        if reader.model_type == "zamba2":
            parts += _zamba2_layer(reader, layer, hidden)
        else:
            parts += feed_forward(reader, layer, hidden)
    parts += _beside(reader, n_layers, hidden)
    return tuple(one for one in parts if one.count)


def _embeddings(reader: Reader, config: Mapping[str, Any], hidden: int) -> Iterator[Part]:
    count = reader.integer(*_VOCABULARY) * hidden
    positions = 0
    if reader.model_type in _LEARNED_POSITIONS:
        positions = hidden * (reader.first_integer(*names.CONTEXT) or 0)
    tied = _is_tied(reader)
    if not _has_head(config):
        yield part(Role.EMBEDDING, None, count + positions, 0)
    elif tied:  # as the head it is read whole
        yield part(Role.HEAD, None, count)
        yield part(Role.EMBEDDING, None, positions, 0)
    else:
        yield part(Role.EMBEDDING, None, count + positions, 0)
        yield part(Role.HEAD, None, count)


def _has_head(config: Mapping[str, Any]) -> bool:
    """A model that embeds or judges texts predicts no token."""
    named = config.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    if name.endswith("LMHeadModel") or name == "ChatGLMModel":
        return True
    return not name.endswith(
        ("Model", "ForSequenceClassification", "ForTokenClassification", "ForRewardModel")
    )


def _is_tied(reader: Reader) -> bool:
    """By the text model, else by the whole one, else by the class."""
    name = "tie_word_embeddings"
    stated = reader.get(name) if reader.states(name) else reader.whole.get(name)
    stated = reader.get(name) if stated is None else stated
    if stated is not None and not isinstance(stated, bool):
        raise reader.wrong(name, f"{stated!r} is neither true nor false")
    return reader.model_type in _TIED if stated is None else stated


def _beside(reader: Reader, n_layers: int, hidden: int) -> Iterator[Part]:
    """Embeddings of each layer and their projections (Gemma 3n and 4), and Gemma 3n's own."""
    width = reader.optional_integer("hidden_size_per_layer_input", minimum=0)
    if width and reader.model_type.startswith(("gemma3n", "gemma4")):
        rows = reader.integer("vocab_size_per_layer_input")
        yield part(Role.EMBEDDING, None, rows * n_layers * width, 0)
        yield part(Role.SMALL, None, 3 * hidden * n_layers * width)
    if reader.model_type == "gemma3n_text":
        streams = reader.integer("altup_num_inputs")
        per_layer = 2 * hidden * reader.integer("laurel_rank") + hidden * streams
        yield part(Role.SMALL, None, 2 * (streams - 1) * hidden**2 + n_layers * per_layer)


def _zamba2_layer(reader: Reader, layer: Layer, hidden: int) -> Iterator[Part]:
    """Layers that call a shared block have a square matrix and a low-rank part of their own; the
    blocks are counted with the first of them."""
    if layer.kind != "hybrid":
        return
    kinds = read_kinds(reader, layer.n_layers)
    inner, rank = reader.integer(*INNER), reader.integer("adapter_rank")
    if not reader.states(*INNER):
        raise reader.missing(*INNER)
    own = hidden**2 + rank * (hidden + 2 * inner)
    yield part(Role.DENSE, layer.index, own)
    if kinds.index("hybrid") == layer.index:
        blocks = reader.integer("num_mem_blocks")
        block = 3 * (2 * hidden) ** 2 + 2 * hidden**2 + 3 * hidden * inner
        # A token passes a block at every call, and reads its matrices each time.
        yield part(Role.DENSE, layer.index, blocks * block, kinds.count("hybrid") * block)


def _encoder_decoder(reader: Reader) -> tuple[Part, ...]:
    hidden = reader.integer(*names.HIDDEN)
    decoders = reader.optional_integer("decoder_layers", "num_decoder_layers")
    decoders = decoders or layer_count(reader)
    encoders = reader.optional_integer("encoder_layers") or layer_count(reader)
    heads = reader.integer("decoder_attention_heads", *names.QUERY_HEADS)
    inner = reader.integer("decoder_ffn_dim", *INNER)
    dim = reader.optional_integer("d_kv") or hidden // heads
    gated = reader.get("is_gated_act") is True or "gated" in str(reader.get("feed_forward_proj"))
    attention = 4 * hidden * heads * dim
    feed = (3 if gated else 2) * hidden * inner
    table = reader.integer(*_VOCABULARY) * hidden
    tied = _is_tied(reader)
    embedding = 0 if tied else table
    front = hidden * sum(
        reader.optional_integer(name) or 0
        for name in ("max_source_positions", "max_target_positions")
    )
    if reader.model_type in ("bart", "mbart"):
        front = 2 * hidden * (reader.integer("max_position_embeddings") + 2)
    if (bins := reader.optional_integer("num_mel_bins")) is not None:
        front += 3 * hidden * (bins + hidden)  # two convolutions over the spectrum
    return (
        part(Role.HEAD, None, table),
        part(Role.EMBEDDING, None, embedding + front, 0),
        part(Role.MIXER, None, encoders * attention, 0),  # the encoder runs once, not every step
        part(Role.DENSE, None, encoders * feed, 0),
        part(Role.MIXER, None, decoders * 2 * attention),
        part(Role.DENSE, None, decoders * feed),
    )
