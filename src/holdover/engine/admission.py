"""What is refused at once: requests that are wrong or can never fit."""

from __future__ import annotations

from holdover.engine.api import SamplingParams
from holdover.errors import RequestError
from holdover.text.length import too_long


def check_request(
    prompt: tuple[int, ...],
    params: SamplingParams,
    n: int,
    vocab_size: int,
    max_context_tokens: int,
) -> int:
    """Returns the most tokens the answer may have. Raises RequestError naming what would work."""
    if not prompt:
        raise RequestError("prompt", "the prompt has no tokens; it must have at least 1")
    if n < 1:
        raise RequestError("n", f"n must be at least 1, not {n}")
    _check_ids("prompt", prompt, vocab_size)
    _check_ids("logit_bias", [token for token, _ in params.logit_bias], vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    n_left = max_context_tokens - len(prompt)
    asked = "" if params.max_tokens is None else f" and max_tokens is {params.max_tokens}"
    if n_left < 1:
        raise too_long(
            "prompt", f"{len(prompt)} tokens{asked}", max_context_tokens, params.max_tokens or 1
        )
    if params.max_tokens is not None and params.max_tokens > n_left:
        raise RequestError(
            "max_tokens",
            f"the prompt has {len(prompt)} tokens{asked}; prompt and answer together can have "
            f"{max_context_tokens}, so that max_tokens up to {n_left} would fit",
            code="context_length_exceeded",
        )
    return params.max_tokens or n_left


def _check_ids(field: str, ids: tuple[int, ...] | list[int], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(
            field, f"{field} has the unknown token id {wrong}; ids go from 0 to {vocab_size - 1}"
        )
