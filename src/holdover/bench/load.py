"""What to send to which server under test. Imports no HTTP client: flags are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdover.bench.prompts import prompt_text
from holdover.config import at_least_one
from holdover.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and how it is asked."""

    url: str = "http://127.0.0.1:8000"
    model: str | None = None  # the server's first when not given
    api_key: str | None = None
    ignore_eos: bool = True  # answers of exactly the tokens asked for; not part of OpenAI's API
    timeout_s: float = 300.0  # longest silence of a stream
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # sent with every request

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:  # NaN neither
            raise ConfigError("--timeout-s", f"{self.timeout_s} is not above 0")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("--url", f"{self.url!r} does not start with http:// or https://")

    @property
    def base_url(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + "/v1"

    def body(
        self, messages: Sequence[Mapping[str, str]], output_tokens: int, model: str, seed: int
    ) -> dict[str, Any]:
        """A streamed chat request whose answer is the model's likeliest."""
        return {
            "model": model,
            "messages": list(messages),
            "max_tokens": output_tokens,
            "temperature": 0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **self.extra_body,
        }


@dataclass(frozen=True, slots=True)
class Load:
    """A prompt has `input_words` words, which is near its tokens in usual vocabularies."""

    target: Target = field(default_factory=Target)
    streams: int = 4
    requests: int = 16
    input_words: int = 128
    output_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("streams", "requests", "input_words", "output_tokens"):
            at_least_one(name, getattr(self, name))

    def body(self, index: int, model: str) -> dict[str, Any]:
        content = prompt_text(self.seed, index, self.input_words)
        messages = [{"role": "user", "content": content}]
        return self.target.body(messages, self.output_tokens, model, self.seed)
