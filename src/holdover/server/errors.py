"""Errors as OpenAI writes them: {"error": {"message", "type", "param", "code"}}.

Whatever goes wrong in the server ends in `error_response`, so no client ever sees another shape,
a traceback, or text that cannot be encoded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from holdover.engine.api import QUEUE_FULL, SHUTTING_DOWN
from holdover.errors import RequestError
from holdover.server.fields import unknown

_log = logging.getLogger(__name__)

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "string_unicode": "invalid_unicode",
}

# pydantic speaks of Python; a client wrote JSON.
_MUST_BE = {
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
_MUST_HAVE = {
    "too_short": "at least {min_length} item",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} character",
    "string_too_long": "at most {max_length} characters",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One error, ready to be sent."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": _encodable(self.message),
                "type": kind,
                "param": None if self.param is None else _encodable(self.param),
                "code": self.code,
            }
        }

    def json(self) -> str:
        return json.dumps(self.body())


class ApiError(Exception):
    """Raised inside a handler to answer with a `Problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def error_response(problem: Problem) -> Response:
    return Response(
        problem.json(), problem.status, dict(problem.headers), media_type="application/json"
    )


def from_request_error(error: RequestError, rename: Mapping[str, str] | None = None) -> Problem:
    """A RequestError as a 400; `rename` gives the field names that the client used."""
    name, reason = error.field, error.reason
    if error.code == SHUTTING_DOWN:
        return Problem(503, reason, None, error.code, {"Retry-After": "5"})
    if error.code == QUEUE_FULL:
        return Problem(429, reason, None, error.code, {"Retry-After": "2"})
    if name is not None and rename and name in rename:
        if name != "prompt":  # also a plain word of these messages
            reason = reason.replace(name, rename[name])
        name = rename[name]
    return Problem(400, reason, name, error.code)


def from_validation(error: ValidationError) -> Problem:
    """The first of pydantic's complaints, with the path of the field as the client wrote it."""
    first = error.errors(include_url=False)[0]
    param = path_of(first["loc"]) or "the request body"
    kind, context = first["type"], first.get("ctx", {})
    if kind == "missing":
        text = f"{param} is required"
    elif kind == "extra_forbidden":
        text = unknown(str(first["loc"][-1]), ())
    elif kind == "string_unicode":
        text = f"{param}: not valid Unicode (a lone surrogate character)"
    elif kind in _MUST_BE:
        text = f"{param} must be {_MUST_BE[kind].format(**context)}, not {_shown(first['input'])}"
    elif kind in _MUST_HAVE:
        text = f"{param} must have {_MUST_HAVE[kind].format(**context)}"
        if isinstance(first["input"], str | list | dict):
            text += f", not {len(first['input'])}"
    else:
        text = f"{param}: {first['msg'][0].lower() + first['msg'][1:]}"
    return Problem(400, text, path_of(first["loc"]) or None, _CODES.get(kind, "invalid_value"))


def path_of(loc: Sequence[int | str]) -> str:
    """("messages", 0, "content") -> "messages[0].content"."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _shown(value: Any) -> str:
    """A value short enough for a message; containers by type, since they may be nested deep."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def install(app: FastAPI) -> None:
    """Turn every exception of a handler into a response."""

    async def api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(error.problem)

    async def request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(from_request_error(error))

    async def validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, ValidationError)
        return error_response(from_validation(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(_of_http(request, error))

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody is there to read it

    async def bug(request: Request, error: Exception) -> Response:
        # starlette raises it again after this answer, so its traceback is in the log
        _log.error("%s %s failed: %r", request.method, request.url.path, error)
        return error_response(Problem(500, "internal error; the server's log has the cause"))

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestError, request_error)
    app.add_exception_handler(ValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, bug)


def _of_http(request: Request, error: HTTPException) -> Problem:
    where = f"{request.method} {request.url.path[:200]}"
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return Problem(404, f"no such route: {where}", None, "not_found", headers)
    if error.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow", "")
        text = f"{where}: method not allowed; use {allowed}"
        return Problem(405, text, None, "method_not_allowed", headers)
    return Problem(error.status_code, str(error.detail), None, None, headers)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
