"""What happens to request fields that this server does not act on. The one place that decides.

- Ignored: fields that do not change the answer's text (bookkeeping, billing, hints).
- Refused unless they say "off": fields that would change the answer. Serving such a request as
  if the field were not there would be a wrong answer with status 200.
- Anything else is a spelling mistake or a field of another server, and is refused by name with
  the nearest known one, since `temprature` must not silently mean the default temperature.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdover.errors import RequestError

IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",  # there are no tools to call
        "prediction",  # speed hint
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",  # the models served have no such dial
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)

_NO_TOOLS = "tools are not supported by this server; leave them out"
_NO_GRAMMAR = "structured output is not supported by this server; ask for it in the prompt"
_TEMPLATE = "the chat template is the model's own and cannot be changed by a request"

OFF_ONLY: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "allowed_token_ids": ("not supported by this server", ()),
    "audio": ("this server answers in text only", ()),
    "bad_words": ("not supported by this server; use logit_bias", ([],)),
    "best_of": ("not supported by this server; use n and choose yourself", (1,)),
    "cache_salt": ("tenants are told apart by API key, not by a salt", ()),
    "chat_template": (_TEMPLATE, ()),
    "chat_template_kwargs": (_TEMPLATE, ({},)),
    "continue_final_message": ("not supported by this server", (False,)),
    "documents": ("put the documents into a message", ([],)),
    "function_call": (_NO_TOOLS, ("none", "auto")),
    "functions": (_NO_TOOLS, ([],)),
    "guided_choice": (_NO_GRAMMAR, ()),
    "guided_grammar": (_NO_GRAMMAR, ()),
    "guided_json": (_NO_GRAMMAR, ()),
    "guided_regex": (_NO_GRAMMAR, ()),
    "include_stop_str_in_output": ("stop strings are never part of the answer", (False,)),
    "length_penalty": ("beam search is not supported by this server", (1,)),
    "min_tokens": ("not supported by this server; use ignore_eos", (0,)),
    "modalities": ("this server answers in text only", (["text"],)),
    "prompt_embeds": ("not supported by this server", ()),
    "prompt_logprobs": ("not supported by this server", ()),
    "response_format": (_NO_GRAMMAR, ({"type": "text"},)),
    "skip_special_tokens": ("special tokens are never part of the answer", (True,)),
    "structured_outputs": (_NO_GRAMMAR, ()),
    "suffix": ("inserting text is not supported by this server", ("",)),
    "tool_choice": (_NO_TOOLS, ("none", "auto")),
    "tools": (_NO_TOOLS, ([],)),
    "truncate_prompt_tokens": ("prompts are never cut; shorten it yourself", ()),
    "use_beam_search": ("beam search is not supported by this server", (False,)),
    "web_search_options": ("this server does not search the web", ()),
}

MESSAGE_IGNORED = frozenset(
    {"annotations", "id", "name", "reasoning", "reasoning_content", "refusal", "tool_call_id"}
)
MESSAGE_OFF_ONLY: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("this server reads text only", ()),
    "function_call": (_NO_TOOLS, ()),
    "tool_calls": (_NO_TOOLS, ([],)),
}


# Of /v1/responses, in place of those above.
RESPONSES_IGNORED = frozenset(
    {
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)
_CHAT = "not a field of /v1/responses"
RESPONSES_OFF_ONLY: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "add_special_tokens": (_CHAT, ()),
    "background": ("this server answers at once or not at all", (False,)),
    "context_management": ("this server never shortens a conversation", ([],)),
    "include": ("there is nothing more to include", ([],)),
    "max_completion_tokens": (f"{_CHAT}; use max_output_tokens", ()),
    "max_tokens": (f"{_CHAT}; use max_output_tokens", ()),
    "max_tool_calls": (_NO_TOOLS, ()),
    "messages": (f"{_CHAT}; use input", ()),
    "modalities": ("this server answers in text only", (["text"],)),
    "moderation": ("not supported by this server", ()),
    "n": ("a response is one answer", (1,)),
    "prompt": ("this server keeps no prompt templates", ()),
    "reasoning": (
        "the models served have no such dial",
        ({}, {"effort": None}, {"effort": None, "summary": None}),
    ),
    "response_format": (_NO_GRAMMAR, ({"type": "text"},)),
    "text": (_NO_GRAMMAR, ({}, {"format": {"type": "text"}})),
    "tool_choice": (_NO_TOOLS, ("none", "auto")),
    "tools": (_NO_TOOLS, ([],)),
    "top_logprobs": ("not supported here; /v1/chat/completions has logprobs", (0,)),
    "truncation": ("conversations are never cut; shorten the input yourself", ("disabled",)),
}


def check_extras(
    extras: Mapping[str, Any],
    known: Iterable[str],
    ignored: Collection[str] = IGNORED,
    off_only: Mapping[str, tuple[str, tuple[Any, ...]]] = OFF_ONLY,
) -> None:
    """Raise RequestError for the first of a request's `extras` that must not be ignored."""
    for name, value in extras.items():
        if name in ignored or is_off(off_only, name, value):
            continue
        if name in off_only:
            raise RequestError(name, f"{name}: {off_only[name][0]}", "unsupported_parameter")
        raise RequestError(name, unknown(name, [*known, *off_only]), "unknown_parameter")


def is_off(table: Mapping[str, tuple[str, tuple[Any, ...]]], name: str, value: Any) -> bool:
    """Whether the field is in the table and its value asks for nothing."""
    return name in table and (value is None or any(value == off for off in table[name][1]))


def unknown(name: str, known: Iterable[str]) -> str:
    """The message for a field that nobody knows, with the nearest known name."""
    near = difflib.get_close_matches(name[:64], sorted(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown field {name[:64]!r}{hint}"
