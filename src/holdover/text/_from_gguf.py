"""A tokenizer from a GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdover.text._gguf_vocabulary import build_backend
from holdover.text.chat import ChatTemplate
from holdover.text.tokenizer import Tokenizer, TokenizerSource, assemble_tokenizer

_CONTROL = 3
# Control tokens that end an answer in every model that has them; headers list one of them at most,
# where the models' own generation configs list all.
_END_NAMES = frozenset(
    [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<|end|>",
    ]
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_from_gguf(source: TokenizerSource) -> Tokenizer:
    header = source.metadata
    backend = build_backend(source.path, header)
    tokens = header["tokenizer.ggml.tokens"]
    kinds = header.get("tokenizer.ggml.token_type") or ()
    ends = [
        header[f"tokenizer.ggml.{key}"] for key in _END_KEYS if f"tokenizer.ggml.{key}" in header
    ]
    ends += [i for i, kind in enumerate(kinds) if kind == _CONTROL and tokens[i] in _END_NAMES]
    bos = header.get("tokenizer.ggml.bos_token_id")
    # A SentencePiece vocabulary that says nothing wants a bos; a byte-level one does not.
    wants_bos = header.get(
        "tokenizer.ggml.add_bos_token", header["tokenizer.ggml.model"] == "llama"
    )
    prefix = [bos] if wants_bos and bos is not None else []
    eos = header.get("tokenizer.ggml.eos_token_id")
    wants_eos = header.get("tokenizer.ggml.add_eos_token", False)
    template = header.get("tokenizer.chat_template")
    return assemble_tokenizer(
        source.path,
        backend,
        bos_token_id=bos,
        eos_token_ids=ends,
        around=(prefix, [eos] if wants_eos and eos is not None else []),
        template=ChatTemplate(source.path, template, _names(header, tokens)) if template else None,
    )


def _names(header: Mapping[str, Any], tokens: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name, key in _NAMED.items():
        token_id = header.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and token_id < len(tokens):
            found[name] = tokens[token_id]
    return found
