"""A Hugging Face repository: its config.json and its files' sizes, when there is a network.

Without one, a config.json that was downloaded before still sizes the cache; how large the weights
are is then not known.
"""

from __future__ import annotations

from pathlib import Path

from holdover.errors import ModelFileError
from holdover.plan.sizing.source import Source, config_source, read_config
from holdover.plan.sizing.weights import StoredWeights
from holdover.weights.hub import hub_cause

_TIMEOUT_S = 15


def repository_source(repository: str) -> Source:
    """Config and weight sizes of "org/name". No weight is downloaded.

    Raises ModelFileError with the cause: no network, no such repository, a gate that needs a token.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    try:  # first, since unlike a download it does not try again for half a minute
        info = HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_S)
        config_path = hf_hub_download(repository, "config.json", etag_timeout=_TIMEOUT_S)
    except Exception as error:  # every failure of the hub client ends here, with its cause
        cached = try_to_load_from_cache(repository, "config.json")
        if isinstance(cached, str):
            return config_source(repository, "hub", read_config(Path(cached)))
        raise ModelFileError(
            repository,
            "is neither a file or folder here nor in the catalogue, and could not be had from "
            f"Hugging Face: {hub_cause(repository, error)}",
        ) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return config_source(repository, "hub", read_config(Path(config_path)), _weights(sizes))


def _weights(sizes: dict[str, int]) -> StoredWeights | None:
    """Of the files in the repository's root: safetensors, or .bin where there are none."""
    for ending in (".safetensors", ".bin"):
        found = [size for name, size in sizes.items() if name.endswith(ending) and "/" not in name]
        if found:
            return StoredWeights(sum(found), None, "as stored", f"sizes of {len(found)} files")
    return None
