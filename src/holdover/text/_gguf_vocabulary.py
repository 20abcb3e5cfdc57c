"""A `tokenizers` backend built straight from a GGUF header: vocabulary, merges and splitting rule.

Two kinds exist among the models served: byte-level BPE ("gpt2" in the header, with a named rule for
cutting text into words) and SentencePiece BPE ("llama", whose merges are implied by vocabulary and
scores). A rule this file does not know is refused: guessing would give plausible wrong ids.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from holdover.errors import ModelFileError, UnsupportedModelError

_CONTROL, _USER_DEFINED = 3, 4  # of the header's token types
_SPACE = "\u2581"

# How each named rule cuts text, as published with the models. (Regex, None: GPT-2's own rule.)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_DIGITS_FIRST = ("smollm",)  # every digit is a word of its own, before anything else is cut
_WHOLE_WORDS_FIRST = (_LLAMA3, _TEKKEN)  # a word that is in the vocabulary is not built from merges


def build_backend(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a header describes, without special tokens added around the text."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens or not isinstance(tokens[0], str):
        raise ModelFileError(path, "has no tokenizer: its header lacks tokenizer.ggml.tokens")
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise UnsupportedModelError(
            f"{path}: tokenizer {kind!r} is not supported; supported: {', '.join(builders)}"
        )
    types = metadata.get("tokenizer.ggml.token_type") or (1,) * len(tokens)
    if len(types) != len(tokens):
        raise ModelFileError(path, f"has {len(tokens)} tokens but {len(types)} token types")
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small tuples, none of them garbage: twice the speed
    try:
        backend = builders[kind](path, metadata, tokens)
        _add_whole_tokens(backend, tokens, types)
    except (ModelFileError, UnsupportedModelError):
        raise
    except Exception as error:  # the library raises bare Exception for merges that do not fit
        raise ModelFileError(
            path, f"has a vocabulary that does not fit together: {error}"
        ) from error
    finally:
        if collecting:
            gc.enable()
    return backend


def _byte_level(path: Path, metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in _SPLITS:
        raise UnsupportedModelError(
            f"{path}: tokenizer.ggml.pre {rule!r} is not supported; "
            f"supported: {', '.join(sorted(_SPLITS))}"
        )
    split = _SPLITS[rule]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split in _WHOLE_WORDS_FIRST)
    )
    words: list[Any] = []
    if rule in _DIGITS_FIRST:
        words.append(pre_tokenizers.Digits(individual_digits=True))
    if split is not None:
        words.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    words.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    backend.decoder = decoders.ByteLevel()
    if split == _QWEN2:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(path: Path, metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    gemma = metadata.get("general.architecture") == "gemma3"
    if gemma:
        # Runs of spaces are stored as spaces, though the text they meet has had them replaced.
        tokens = [_SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    # Gemma's scores do not follow its merge order; the order of the vocabulary does.
    scores = None if gemma else metadata.get("tokenizer.ggml.scores")
    if scores is not None and len(scores) != len(tokens):
        raise ModelFileError(path, f"has {len(tokens)} tokens but {len(scores)} scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 3 if gemma else 0)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_implied_merges(tokens, vocabulary, scores),
            unk_token=tokens[unknown] if unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
    else:
        prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first" if prefixed else "never", split=False
        )
        if prefixed:
            steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _implied_merges(
    tokens: Sequence[str], vocabulary: Mapping[str, int], scores: Sequence[float] | None
) -> list[tuple[str, str]]:
    """Every way to make a token from two others: best token first, longest left half first."""
    order = range(len(tokens))
    if scores is not None:
        order = sorted(order, key=scores.__getitem__, reverse=True)  # type: ignore[assignment]
    return [
        (left, right)
        for token in map(tokens.__getitem__, order)
        for cut in range(len(token) - 1, 0, -1)
        if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
    ]


def _add_whole_tokens(backend: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens are matched whole and hidden from text; user-defined ones only matched."""
    special = [
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(tokens, types, strict=True)
        if kind == _CONTROL
    ]
    plain = [
        AddedToken(token, normalized=False, special=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == _USER_DEFINED and backend.token_to_id(token) is not None
    ]
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
