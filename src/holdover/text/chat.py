"""A model's own chat template: messages to the prompt text it was trained on.

Templates come out of model files, so they run in `text.sandbox`, with the few names that Hugging
Face templates may rely on. What a template refuses is the request's fault and says so on
`messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from holdover.errors import ModelFileError, RequestError

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """`names` are the special tokens a template may write: bos_token, eos_token and so on."""

    path: Path
    source: str
    names: Mapping[str, str]

    @cached_property
    def _environment(self) -> Any:
        from holdover.text.sandbox import BoundedEnvironment

        return BoundedEnvironment()

    @cached_property
    def _compiled(self) -> Any:
        import jinja2

        try:
            return self._environment.from_string(self.source)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            raise ModelFileError(
                self.path, f"has a chat template that cannot be compiled: {error}"
            ) from error

    def check(self) -> None:
        """Compile it now: ModelFileError if that fails, which is no request's fault."""
        _ = self._compiled

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text; `RequestError` on `messages` or `tools` where the template cannot."""
        if tools and "tools" not in self.source:
            raise RequestError("tools", "this model's chat template does not take tools")
        template = self._compiled
        plain = [_with_text_content(message, i) for i, message in enumerate(messages)]
        try:
            text: str = self._environment.render(
                template,
                {
                    **self.names,
                    "messages": plain,
                    "tools": list(tools) if tools else None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                },
            )
        except Exception as error:  # template code meeting messages it was not written for
            raise RequestError(
                "messages", f"the model's chat template rejects these messages: {error}"
            ) from error
        return text


def _with_text_content(message: Message, index: int) -> dict[str, Any]:
    """A list of text parts as one string: few templates know lists. Other parts are refused."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise RequestError(
                f"messages[{index}].content", "only parts of type 'text' can be read by this model"
            )
        texts.append(text)
    return {**message, "content": "".join(texts)}
