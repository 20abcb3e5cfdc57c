"""What happens to request fields that this server does not act on. The one place that decides.

- Ignored: fields that do not change the answer's text (bookkeeping, billing, hints).
- Refused unless they say "off": fields that would change the answer. Serving such a request as
  if the field were not there would be a wrong answer with status 200.
- Anything else is a spelling mistake or a field of another server, and is refused by name with
  the nearest known one, since `temprature` must not silently mean the default temperature.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
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


def check_extras(extras: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise RequestError for the first of a request's `extras` that must not be ignored."""
    for name, value in extras.items():
        if name in IGNORED or is_off(OFF_ONLY, name, value):
            continue
        if name in OFF_ONLY:
            raise RequestError(name, f"{name}: {OFF_ONLY[name][0]}", "unsupported_parameter")
        raise RequestError(name, unknown(name, [*known, *OFF_ONLY]), "unknown_parameter")


def is_off(table: Mapping[str, tuple[str, tuple[Any, ...]]], name: str, value: Any) -> bool:
    """Whether the field is in the table and its value asks for nothing."""
    return name in table and (value is None or any(value == off for off in table[name][1]))


def unknown(name: str, known: Iterable[str]) -> str:
    """The message for a field that nobody knows, with the nearest known name."""
    near = difflib.get_close_matches(name[:64], sorted(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown field {name[:64]!r}{hint}"
