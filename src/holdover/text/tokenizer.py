"""Text to token ids and back, and messages to a prompt, for one model.

The ids come from the `tokenizers` library; bytes and text of ids are worked out here, so that
streamed and whole decoding are the same function. Loaded from a folder's tokenizer.json or straight
from a GGUF header.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from tokenizers import AddedToken

from holdover.errors import ModelFileError, RequestError, UnsupportedModelError
from holdover.text.chat import ChatTemplate, Message
from holdover.text.guard import MARK, ControlGuard
from holdover.text.length import LengthBound, too_long
from holdover.text.memo import Memo, piece_ends

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerSource(Protocol):
    """The part of a checkpoint that a tokenizer is made from."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Build with `load_tokenizer`.

    `prefix_ids` and `suffix_ids` are what the model wants around a text (mostly one bos token).
    `eos_token_ids` holds every id that ends an answer.
    """

    path: Path
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int] = field(repr=False)
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    strips_leading_space: bool
    chat_template: ChatTemplate | None = field(repr=False)
    _guard: ControlGuard = field(repr=False)
    _length: LengthBound = field(repr=False)
    _mark_id: int
    _backend: tokenizers.Tokenizer = field(repr=False)
    _byte_level: bool = field(repr=False)
    _piece_ends: re.Pattern[str] | None = field(repr=False)
    _memo: Memo = field(default_factory=Memo, repr=False)
    _bytes: dict[int, bytes] = field(default_factory=dict, repr=False)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        field_name: str = "prompt",
        max_context_tokens: int | None = None,
    ) -> list[int]:
        """Ids of a text; special tokens spelled in it are recognised, as in Hugging Face.

        With `max_context_tokens`, a text that cannot possibly fit is refused without the work of
        tokenizing it. Other threads run on meanwhile.
        """
        self._demand_fits(text, field_name, max_context_tokens)
        [ids] = self._encode_all([text], field_name)
        return [*self.prefix_ids, *ids, *self.suffix_ids] if add_special_tokens else ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. Bytes that make no character become U+FFFD; unknown ids add nothing."""
        shown = (i for i in ids if not (skip_special_tokens and i in self.special_ids))
        text = b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; for a special token, its name."""
        known = self._bytes.get(token_id)
        if known is None:
            known_id = 0 <= token_id < 1 << 32 and token_id != self._mark_id
            piece = self._backend.id_to_token(token_id) if known_id else None
            known = self._bytes[token_id] = b"" if piece is None else self._piece_bytes(piece)
        return known

    def token_text(self, token_id: int) -> str:
        """A token by itself, for logprobs; U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Messages as prompt text, through the model's own chat template."""
        if self.chat_template is None:
            raise RequestError(
                "messages",
                "this model has no chat template; send text to /v1/completions instead",
                code="no_chat_template",
            )
        return self.chat_template.render(messages, tools, add_generation_prompt)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_context_tokens: int | None = None,
        tenant: str = "",
    ) -> list[int]:
        """Messages as ids; the bos is added only where the template did not write it.

        The template's special tokens are recognised; those spelled in a message are plain text.
        What the tenant sent before is not tokenized again.
        """

        text = self.chat_text(messages, tools, add_generation_prompt)
        return self.chat_ids(text, max_context_tokens, tenant)

    def chat_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """What `chat_ids` makes ids of: `render_chat`, with marks in what messages spell."""

        def render(data: tuple[Any, Any]) -> str:
            return self.render_chat(*data, add_generation_prompt)

        return self._guard.render(render, (messages, tools))

    def chat_ids(
        self,
        text: str,
        max_context_tokens: int | None = None,
        tenant: str = "",
        *,
        begins: bool = True,
    ) -> list[int]:
        """Ids of a text of `chat_text`, or of a later part of it (`begins` is False).

        A part has the ids that it has in the whole where it begins with a special token; where
        `cuts_anywhere`, some ids of the same text elsewhere too.
        """
        self._demand_fits(text, "messages", max_context_tokens)
        pieces = [p for p in self._piece_ends.split(text) if p] if self._piece_ends else [text]
        ids = self._memo.ids_of(tenant, pieces, lambda new: self._encode_all(new, "messages"))
        n_prefix = len(self.prefix_ids)
        if not begins or tuple(ids[:n_prefix]) == self.prefix_ids:
            return ids
        return [*self.prefix_ids, *ids]

    @property
    def cuts_anywhere(self) -> bool:
        """Whether the ids of two parts of a text, put together, spell the text."""
        return self._piece_ends is not None

    @property
    def chat_digest(self) -> bytes:
        """Changes with what turns the same messages into other ids: 16 bytes."""
        template = self.chat_template
        told = ("", {}) if template is None else (template.source, dict(template.names))
        parts = repr((*told, self.prefix_ids)).encode("utf-8", "replace")
        return hashlib.blake2b(parts, digest_size=16).digest()

    def _demand_fits(self, text: str, field_name: str, max_context_tokens: int | None) -> None:
        if max_context_tokens is not None and len(text) > max_context_tokens:
            least_tokens = self._length.least_tokens(text)
            if least_tokens >= max_context_tokens:
                raise too_long(field_name, f"at least {least_tokens} tokens", max_context_tokens)

    def _encode_all(self, texts: list[str], field_name: str) -> list[list[int]]:
        try:
            # Unlike `encode`, lets go of Python's lock, and does not work out places in the text.
            found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(
                field_name, "holds a lone surrogate or is not text; send valid Unicode"
            ) from error
        return [
            [i for i in encoding.ids if i != self._mark_id] if MARK in text else encoding.ids
            for text, encoding in zip(texts, found, strict=True)
        ]

    def _piece_bytes(self, piece: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(map(_BYTE_OF_CHAR.__getitem__, piece))
            except KeyError:  # an added token is spelled as text, not in the byte alphabet
                return piece.encode()
        byte = _BYTE_TOKEN.fullmatch(piece)
        if byte is not None:
            return bytes.fromhex(byte.group(1))
        return piece.replace(_SPACE, " ").encode()


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """The tokenizer of a checkpoint; `ModelFileError` where it is missing or damaged."""
    # Each needs this module's `assemble_tokenizer`, and a GGUF server never needs the other.
    if source.metadata:
        from holdover.text._from_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(source)
    from holdover.text._from_folder import tokenizer_from_folder

    return tokenizer_from_folder(source)


def assemble_tokenizer(
    path: Path,
    backend: tokenizers.Tokenizer,
    *,
    bos_token_id: int | None,
    eos_token_ids: Iterable[int],
    around: tuple[Sequence[int], Sequence[int]],
    template: ChatTemplate | None,
) -> Tokenizer:
    """Check what a source said against its vocabulary and put it together."""
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    prefix, suffix = around
    for token_id in (*eos_token_ids, *prefix, *suffix):
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ModelFileError(
                path, f"names the special token id {token_id!r}; its vocabulary has {vocab_size}"
            )
    added = backend.get_added_tokens_decoder()
    byte_level, strips = _decoding(path, backend)
    written = "" if template is None else template.source
    guard = ControlGuard(
        [token for token in added.values() if token.special],
        [t for t in added.values() if not t.special and t.content in written],
        backend.normalizer,
    )
    backend.add_tokens([AddedToken(MARK, normalized=False, special=False)])
    mark_id = backend.token_to_id(MARK)
    assert mark_id is not None
    return Tokenizer(
        path=path,
        vocab_size=vocab_size,
        bos_token_id=bos_token_id,
        eos_token_ids=frozenset(eos_token_ids),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        prefix_ids=tuple(prefix),
        suffix_ids=tuple(suffix),
        strips_leading_space=strips,
        chat_template=template,
        _guard=guard,
        _length=LengthBound(backend, byte_level, _BYTE_OF_CHAR),
        _mark_id=mark_id,
        _backend=backend,
        _byte_level=byte_level,
        _piece_ends=piece_ends(backend),
    )


def _decoding(path: Path, backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """Whether pieces are spelled in the byte alphabet, and whether a leading space is dropped."""
    decoder = backend.decoder
    if decoder is None:
        raise UnsupportedModelError(f"{path}: tokenizer without a decoder")
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    byte_level = strips = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel":
            byte_level = True
        elif kind == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
            strips = True
        elif kind == "Metaspace" and step["replacement"] == _SPACE:
            strips = step.get("prepend_scheme", "always") != "never"
        elif kind == "Replace" and step["pattern"] == {"String": _SPACE}:
            pass  # done for every piece
        elif kind not in ("ByteFallback", "Fuse"):
            raise UnsupportedModelError(f"{path}: tokenizer decoder {kind!r} is not supported")
    return byte_level, strips


def _byte_of_char() -> dict[str, int]:
    """The byte alphabet of GPT-2: printable bytes stand for themselves, the others follow 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
