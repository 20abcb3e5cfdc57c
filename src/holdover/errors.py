"""Every error a person is meant to read.

A `HoldoverError` names what was wrong, which flag, field or file it was, and where possible the
value that would have worked. The command line prints its text and exits with code 2; the server
turns a `RequestError` into a 4xx. Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class HoldoverError(Exception):
    """Base of all errors with a message for the user."""


class ConfigError(HoldoverError):
    """A flag or a field of the configuration has a value that cannot work."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ModelFileError(HoldoverError):
    """A model file is missing, damaged, or does not hold what its header says."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class UnsupportedModelError(HoldoverError):
    """The model is of an architecture or a format that no plug-in serves."""


class PluginError(HoldoverError):
    """A plug-in that was asked for does not exist or failed to load."""


class BudgetError(HoldoverError):
    """The memory budget cannot hold what was asked for."""


class RequestError(HoldoverError):
    """One request is wrong; `field` is the name of the offending request field."""

    def __init__(self, field: str | None, reason: str, code: str = "invalid_value") -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason
        self.code = code
