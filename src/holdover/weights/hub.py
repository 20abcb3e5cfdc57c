"""What went wrong with Hugging Face, in words that say what to do."""

from __future__ import annotations

_NETWORK = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError", "ReadTimeout")
"""What a failed connection is called by the HTTP libraries that the hub's client has used."""


def hub_cause(repository: str, error: Exception) -> str:
    """One sentence for an exception of the hub's client, whatever it is."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"its owner asks for consent first; give it at https://huggingface.co/{repository} "
            "and set HF_TOKEN to a token of yours"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private and HF_TOKEN has no token for it"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it was not downloaded before"
    if any(type(cause).__name__ in _NETWORK for cause in _causes(error)):
        return "there is no network, or huggingface.co does not answer; check connection and proxy"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("Got: ")


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and what led to it, outermost first."""
    cause = error.__cause__ or error.__context__
    return [error, *(_causes(cause) if cause is not None else ())]
