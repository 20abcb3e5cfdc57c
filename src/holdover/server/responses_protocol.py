"""Requests of /v1/responses and /v1/conversations, as OpenAI's Responses API words them.

Input is text: a string, or messages of text parts. Everything else that the API knows is refused by
its name, unless it has the value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from holdover.engine.api import SamplingParams
from holdover.errors import RequestError
from holdover.server.fields import RESPONSES_IGNORED, RESPONSES_OFF_ONLY, check_extras, unknown
from holdover.server.limits import MAX_PIN_S
from holdover.server.protocol import Int, SamplingFields, Text, sampling_params

_ROLES = ("user", "assistant", "system", "developer")
_PARTS = ("input_text", "output_text", "text")
# What an item of an earlier response has beside its text, and a client may send back with it.
_ITEM_IGNORED = frozenset({"id", "status", "phase", "type", "role", "content", "object"})
_PART_IGNORED = frozenset({"type", "text", "annotations", "logprobs"})

ChatMessage = dict[str, Any]  # role and content, as chat templates want them


def read_items(value: Any, field: str) -> list[ChatMessage]:
    """Message items as messages. Raises RequestError with the place."""
    if isinstance(value, str):
        return [{"role": "user", "content": _encodable(value, field)}]
    if not isinstance(value, list):
        raise RequestError(field, f"{field} must be a string or a list of messages")
    return [_message(item, f"{field}[{i}]") for i, item in enumerate(value)]


def _message(item: Any, field: str) -> ChatMessage:
    if not isinstance(item, dict):
        raise RequestError(field, f"{field} must be a message: an object with role and content")
    kind = item.get("type", "message")
    if kind != "message":
        text = f"{field}.type: items of type {str(kind)[:40]!r} are not supported; send messages"
        raise RequestError(f"{field}.type", text, "unsupported_parameter")
    role = item.get("role")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise RequestError(f"{field}.role", f"{field}.role must be one of {known}")
    for name, found in item.items():
        if name not in _ITEM_IGNORED and found is not None:
            text = f"{field}: {unknown(name, ('type', 'role', 'content'))}"
            raise RequestError(f"{field}.{name[:64]}", text, "unknown_parameter")
    content = _content(item.get("content"), f"{field}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(value: Any, field: str) -> str:
    if isinstance(value, str):
        return _encodable(value, field)
    if not isinstance(value, list):
        raise RequestError(field, f"{field} must be a string or a list of text parts")
    texts = []
    for i, part in enumerate(value):
        place = f"{field}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PARTS:
            text = f"{place}: parts of type {str(kind)[:40]!r} are not supported; this server reads"
            raise RequestError(place, f"{text} input_text and output_text", "unsupported_content")
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{place}.text", f"{place}.text must be a string")
        for name, found in part.items():
            if name not in _PART_IGNORED and found is not None:
                text = f"{place}: {unknown(name, ('type', 'text'))}"
                raise RequestError(f"{place}.{name[:64]}", text, "unknown_parameter")
        texts.append(_encodable(part["text"], f"{place}.text"))
    return "".join(texts)


def _encodable(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = f"{field}: not valid Unicode (a lone surrogate character)"
        raise RequestError(field, reason, "invalid_unicode") from None
    return text


def _input(value: Any) -> list[ChatMessage]:
    messages = read_items(value, "input")
    if not messages:
        raise RequestError("input", "input must have at least 1 message")
    return messages


def _items(value: Any) -> list[ChatMessage]:
    return [] if value is None else read_items(value, "items")


def _conversation(value: Any) -> str | None:
    if isinstance(value, dict) and set(value) == {"id"}:
        value = value["id"]
    if value is not None and not isinstance(value, str):
        text = 'conversation must be an id, or an object of the form {"id": "conv_..."}'
        raise RequestError("conversation", text)
    return value


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 16:
        raise RequestError("metadata", "metadata must be an object of at most 16 texts")
    for name, text in value.items():
        if not isinstance(text, str):
            raise RequestError("metadata", f"metadata[{name[:64]!r}] must be a string")
        if len(name) > 64 or len(text) > 512:
            limits = "a name of metadata has at most 64 characters and its text at most 512"
            raise RequestError("metadata", limits)
        _encodable(name, "metadata")
        _encodable(text, "metadata")
    return value


Metadata = Annotated[dict[str, str], PlainValidator(_metadata)]


class ResponseStreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_obfuscation: bool | None = None  # padding against traffic analysis; ignored


class ResponsesRequest(SamplingFields):
    model: Text
    input: Annotated[list[dict[str, Any]], PlainValidator(_input)]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    conversation: Annotated[str | None, PlainValidator(_conversation)] = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Int | None = None
    metadata: Metadata = Field(default_factory=dict)
    user: Text | None = None
    explain: bool | None = None

    def model_post_init(self, context: Any, /) -> None:
        fields = type(self).model_fields
        check_extras(self.model_extra or {}, fields, RESPONSES_IGNORED, RESPONSES_OFF_ONLY)
        if self.previous_response_id is not None and self.conversation is not None:
            text = "give either previous_response_id or conversation, not both"
            raise RequestError("previous_response_id", text)
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", "stream_options needs stream to be true")

    @property
    def renamed(self) -> dict[str, str]:
        """Names the engine uses -> names this client used."""
        return {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}

    @property
    def lead(self) -> list[ChatMessage]:
        """What goes before the conversation."""
        return [{"role": "system", "content": self.instructions}] if self.instructions else []

    def sampling(self) -> SamplingParams:
        return sampling_params(self, self.max_output_tokens, None)


class NewConversation(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    metadata: Metadata = Field(default_factory=dict)
    items: Annotated[list[dict[str, Any]], PlainValidator(_items)] = Field(default_factory=list)


class Fork(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    response_id: Text | None = None  # None: the last
    metadata: Metadata = Field(default_factory=dict)


class Pin(BaseModel):
    """Seconds from now; 0 ends it."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ttl_s: Annotated[float, Field(ge=0, le=MAX_PIN_S)]
