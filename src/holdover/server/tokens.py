"""The tokenizer as the server sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TokenizerLike(Protocol):
    """The part of `text.tokenizer.Tokenizer` that the server uses."""

    @property
    def vocab_size(self) -> int: ...

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        field_name: str = "prompt",
        max_context_tokens: int | None = None,
    ) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_context_tokens: int | None = None,
        tenant: str = "",
    ) -> list[int]: ...

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str: ...

    def chat_ids(
        self,
        text: str,
        max_context_tokens: int | None = None,
        tenant: str = "",
        *,
        begins: bool = True,
    ) -> list[int]: ...

    @property
    def cuts_anywhere(self) -> bool: ...

    @property
    def chat_digest(self) -> bytes: ...
