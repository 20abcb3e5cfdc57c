"""Requests as the OpenAI API words them, checked and turned into what the engine understands.

Types are strict (no "1" for 1) and null means "not given". Ranges of sampling parameters are
checked by `SamplingParams` alone, token ids and lengths by the engine's `submit`. Every refusal
names the field as the client wrote it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from holdover.engine.api import SamplingParams
from holdover.errors import RequestError
from holdover.server.fields import MESSAGE_IGNORED, MESSAGE_OFF_ONLY, check_extras, is_off, unknown
from holdover.server.limits import (
    MAX_ANSWERS,
    MAX_INT,
    MAX_LOGIT_BIAS,
    MAX_SEED,
    MAX_STOP,
    MAX_STOP_CHARS,
    MIN_SEED,
)


def _encodable(text: str | None) -> str | None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "not valid Unicode") from None
    return text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _join_parts(value: Any) -> Any:
    """Message content: text as it is, text parts put together, other parts refused."""
    if not isinstance(value, list):
        return value
    texts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise PydanticCustomError(
                "unsupported_content",
                "part {i} is not of the form {form}; this server reads text only",
                {"i": i, "form": '{"type": "text", "text": "..."}'},
            )
        texts.append(part["text"])
    return "".join(texts)


def _is_ids(value: list[Any]) -> bool:
    return bool(value) and all(type(item) is int for item in value)


def _prompts(value: Any) -> list[str | list[int]]:
    """The four forms of `prompt` as a list of prompts, each a text or token ids."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise PydanticCustomError("prompt_type", "use a string, token ids, or a list of these")
    if not value:
        raise PydanticCustomError("prompt_empty", "the list of prompts is empty")
    if _is_ids(value):
        return [value]
    if all(isinstance(item, str) for item in value):
        for item in value:
            _encodable(item)
        return list(value)
    if all(isinstance(item, list) and _is_ids(item) for item in value):
        return list(value)
    raise PydanticCustomError(
        "prompt_type", "use a string, token ids, or a list of either; not empty and not mixed"
    )


Text = Annotated[str, AfterValidator(_encodable)]
Int = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
Content = Annotated[str | None, BeforeValidator(_join_parts), AfterValidator(_encodable)]
Stop = Annotated[
    list[Annotated[str, Field(max_length=MAX_STOP_CHARS), AfterValidator(_encodable)]],
    BeforeValidator(_as_list),
    Field(max_length=MAX_STOP),
]
Prompts = Annotated[list[str | list[int]], PlainValidator(_prompts)]
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; ignored


class Message(BaseModel):
    model_config = _STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None

    def rendered(self) -> dict[str, Any]:
        """As the chat template wants it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content or ""}


class SamplingFields(BaseModel):
    """How tokens are chosen, in all endpoints."""

    model_config = _STRICT

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    stop: Stop | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None


class GenerationRequest(SamplingFields):
    """What chat and text completions have in common."""

    model: Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    max_tokens: Int | None = None
    add_special_tokens: bool | None = None
    explain: bool | None = None

    def model_post_init(self, context: Any, /) -> None:
        check_extras(self.model_extra or {}, type(self).model_fields)
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", "stream_options needs stream to be true")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        check_messages(self.messages)
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            text = f"max_tokens {both[0]} and max_completion_tokens {both[1]} differ; give one"
            raise RequestError("max_tokens", text)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs", "top_logprobs needs logprobs to be true")

    @property
    def renamed(self) -> dict[str, str]:
        """Names the engine uses -> names this client used."""
        names = {"logprobs": "top_logprobs", "prompt": "messages"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def sampling(self) -> SamplingParams:
        limit = self.max_completion_tokens
        return sampling_params(
            self,
            self.max_tokens if limit is None else limit,
            (self.top_logprobs or 0) if self.logprobs else None,
        )


class CompletionRequest(GenerationRequest):
    """A prompt is raw text: special tokens spelled in it are special tokens. Keep what people write
    out of it, or use /v1/chat/completions, where the text of a message is only ever text."""

    prompt: Prompts
    logprobs: Int | None = None
    echo: bool | None = None

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        n_answers = len(self.prompt) * (self.n or 1)
        if n_answers > MAX_ANSWERS:
            text = f"{len(self.prompt)} prompts times n is {n_answers}; at most {MAX_ANSWERS}"
            raise RequestError("prompt" if len(self.prompt) > MAX_ANSWERS else "n", text)
        if self.echo and self.logprobs is not None:
            text = "echo with logprobs is not supported: prompt tokens have no logprobs here"
            raise RequestError("echo", text, "unsupported_parameter")

    def sampling(self) -> SamplingParams:
        return sampling_params(self, self.max_tokens, self.logprobs)


class TokenizeRequest(BaseModel):
    """Either a text or a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    def model_post_init(self, context: Any, /) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("prompt", "give either prompt or messages")
        check_messages(self.messages or [])


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text | None = None
    tokens: list[Int]


def sampling_params(
    asked: SamplingFields, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    given = {
        name: getattr(asked, name)
        for name in (
            "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "seed", "ignore_eos",
        )
        if getattr(asked, name) is not None
    }  # fmt: skip
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        top_k=max(0, asked.top_k or 0),  # -1 is another common word for "off"
        stop=tuple(asked.stop or ()),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        logit_bias=_biases(asked.logit_bias or {}),
        **given,
    )


def _biases(asked: dict[str, float]) -> tuple[tuple[int, float], ...]:
    biases = []
    for key, bias in asked.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            text = f"logit_bias: {key[:32]!r} is not a token id"
            raise RequestError("logit_bias", text)
        biases.append((int(key), bias))
    return tuple(biases)


def check_messages(messages: list[Message]) -> None:
    for i, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            name = f"messages[{i}].content"
            text = f"{name} is required for role {message.role!r}"
            raise RequestError(name, text, "missing_required_parameter")
        for extra, value in (message.model_extra or {}).items():
            if extra in MESSAGE_IGNORED or is_off(MESSAGE_OFF_ONLY, extra, value):
                continue
            name = f"messages[{i}].{extra[:64]}"
            if extra in MESSAGE_OFF_ONLY:
                text = f"{name}: {MESSAGE_OFF_ONLY[extra][0]}"
                raise RequestError(name, text, "unsupported_parameter")
            text = unknown(extra, ("role", "content", *MESSAGE_IGNORED))
            raise RequestError(name, f"messages[{i}]: {text}", "unknown_parameter")
