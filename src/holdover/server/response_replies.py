"""Responses, their events and conversations as OpenAI's Responses API words them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from holdover.server.replies import Usage, without_unknown


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: str
    content: list[OutputText]


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    forgotten_tokens: int | None = None

    @model_serializer(mode="wrap")
    def _known_only(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_unknown(handler(self), "forgotten_tokens")

    @classmethod
    def of(cls, usage: Usage) -> ResponseUsage:
        cached = usage.prompt_tokens_details.cached_tokens
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
            forgotten_tokens=usage.forgotten_tokens,
        )


class ResponseError(BaseModel):
    code: str
    message: str


class Ref(BaseModel):
    id: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseReply(BaseModel):
    """`holdover` is left out where nobody asked for an explanation."""

    id: str
    object: Literal["response"] = "response"
    created_at: float
    status: str
    background: bool = False
    conversation: Ref | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage] = Field(default_factory=list)
    parallel_tool_calls: bool = False
    previous_response_id: str | None
    reasoning: dict[str, None] = Field(default_factory=lambda: {"effort": None, "summary": None})
    store: bool
    temperature: float
    text: dict[str, dict[str, str]] = Field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Literal["auto"] = "auto"
    tools: list[Any] = Field(default_factory=list)
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    holdover: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _explained_only(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_unknown(handler(self), "holdover")


class ConversationReply(BaseModel):
    """`bytes` by place and `reusable_tokens` only where one conversation is asked for."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    last_used_at: float
    age_s: float
    tokens: int
    turns: int
    last_response_id: str | None
    pinned_until: float | None
    metadata: dict[str, str]


class InspectedConversation(ConversationReply):
    reusable_tokens: int
    bytes: dict[str, int]


class ConversationList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ConversationReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    id: str
    object: str
    deleted: Literal[True] = True
