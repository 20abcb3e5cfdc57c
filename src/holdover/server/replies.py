"""Answers as the OpenAI API words them, whole and in pieces.

`None` is written as null, since clients read `finish_reason` and `logprobs` on every choice; only
a `Delta` leaves out what it does not bring, `usage` and the explanation in `holdover` are left out
where nobody asked for them, and the count of forgotten tokens where none can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from holdover.engine.api import Usage as EngineUsage


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    forgotten_tokens: int | None = None  # of prompt and answer: no layer reads them any more

    @model_serializer(mode="wrap")
    def _known_only(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_unknown(handler(self), "forgotten_tokens")


class TopLogprob(BaseModel):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    holdover: dict[str, Any] | None = None


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer(mode="wrap")
    def _given_only(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class ChatChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    holdover: dict[str, Any] | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(BaseModel):
    """Also the pieces of a streamed completion: their object name is the same."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    holdover: dict[str, Any] | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "holdover"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


def without_unknown(told: dict[str, Any], name: str) -> dict[str, Any]:
    """`told`, without `name` where it is None."""
    if told[name] is None:
        del told[name]
    return told


def total_usage(answers: Iterable[EngineUsage | None], n: int) -> Usage:
    """One usage for all answers of a request, `n` after each other for each prompt.

    A prompt counts once. What it reused is what its least lucky answer reused: where one answer
    computed the prompt and its siblings shared it, the prompt was computed. What was forgotten is
    what the longest of them forgot.
    """
    known = list(answers)
    forgotten = [u.forgotten_tokens for u in known if u and u.forgotten_tokens is not None]
    prompt = cached = completion = 0
    for first in range(0, len(known), n):
        group = [usage for usage in known[first : first + n] if usage is not None]
        if group:
            prompt += group[0].prompt_tokens
            cached += min(usage.cached_tokens for usage in group)
            completion += sum(usage.completion_tokens for usage in group)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        forgotten_tokens=max(forgotten, default=None),
    )
