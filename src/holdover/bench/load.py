"""Which server is under test, and how it is asked. Imports no HTTP: flags are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdover.errors import ConfigError

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and how it is asked."""

    url: str = "http://127.0.0.1:8000"
    model: str | None = None  # the server's first when not given
    api_key: str | None = None
    ignore_eos: bool = True  # answers of exactly the tokens asked for; not part of OpenAI's API
    timeout_s: float = 300.0  # longest silence of a stream
    retries: int = 0  # of a request that a busy server refuses
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # of every request; None leaves out
    name: str = "server"

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:  # NaN neither
            raise ConfigError("--timeout-s", f"{self.timeout_s} is not above 0")
        if self.retries < 0:
            raise ConfigError("--retries", f"{self.retries} is too small; the least is 0")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("--url", f"{self.url!r} does not start with http:// or https://")
        try:
            parts = urlsplit(self.url)
            known = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known or not self.url.isascii() or " " in self.url:
            raise ConfigError("--url", f"{self.url!r} is no URL, as http://127.0.0.1:8000 is")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError("--api-key", "has characters that an HTTP header cannot carry")

    @property
    def root_url(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def base_url(self) -> str:
        return self.root_url + "/v1"

    def body(
        self, messages: Sequence[Mapping[str, str]], output_tokens: int, model: str, seed: int
    ) -> dict[str, Any]:
        """A streamed chat request whose answer is the model's likeliest."""
        fields = {
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
        return {name: value for name, value in fields.items() if value is not None}


def named_url(text: str, flag: str) -> tuple[str, str]:
    """NAME=URL. Raises ConfigError with the flag."""
    name, equals, url = text.partition("=")
    if not equals or not name or not url.startswith(("http://", "https://")):
        raise ConfigError(flag, f"{text!r} is not NAME=URL, as vllm=http://127.0.0.1:8001 is")
    return name, url
