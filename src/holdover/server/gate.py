"""Everything that is decided about a request before a route sees it, as plain ASGI.

API keys and tenants, the size of the body, refusal while shutting down, request ids, and the
count of requests. Plain ASGI because starlette's middleware base class would hide disconnects.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdover.engine.api import SHUTTING_DOWN
from holdover.server.context import Context
from holdover.server.errors import ApiError, Problem, error_response
from holdover.server.limits import MAX_BODY_BYTES

_OPEN = frozenset({"/", "/health"})


def tenant_of(key: str) -> str:
    """A stable name for the owner of a key that does not tell the key."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"holdover-tenant").hexdigest()


class Gate:
    """ASGI middleware; puts `request_id` and `tenant` into the request's state."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._drain = context.drain
        self._requests = context.metrics.requests
        self._keys = [(_digest(key.encode()), tenant_of(key)) for key in context.config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = uuid.uuid4().hex
        body = _Body(receive)
        status = 499

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).append("x-request-id", state["request_id"])
            await send(message)

        self._drain.enter()
        try:
            problem = self._admit(scope)
            if problem is None:
                await self._app(scope, body.receive, answer)
            else:
                await error_response(problem)(scope, body.receive, answer)
        except Exception:
            status = 500
            raise
        finally:
            self._drain.leave()
            self._requests.labels(_route(scope), str(status)).inc()

    def _admit(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        if scope["path"] not in _OPEN:
            tenant = self._tenant(headers.get("authorization", ""))
            if tenant is None:
                return Problem(
                    401,
                    "wrong or missing API key; send the header 'Authorization: Bearer KEY'",
                    None,
                    "invalid_api_key",
                    {"WWW-Authenticate": "Bearer"},
                )
            scope["state"]["tenant"] = tenant
        if scope["method"] != "POST":
            return None
        if self._drain.draining:
            text = "the server is shutting down; send the request again elsewhere or later"
            return Problem(503, text, None, SHUTTING_DOWN, {"Retry-After": "5"})
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            return too_large()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            # also what keeps a web page from posting here without the browser asking first
            text = f"content type {kind[:64]!r}; send JSON with 'Content-Type: application/json'"
            return Problem(415, text, None, "unsupported_media_type")
        return None

    def _tenant(self, authorization: str) -> str | None:
        """The tenant of the key that was sent; "" when no keys are set, None for a wrong one.

        Compares with every key, in a time that does not depend on which one it is.
        """
        if not self._keys:
            return ""
        scheme, _, key = authorization.partition(" ")
        sent = _digest(key.strip().encode("latin-1"))  # the bytes as they came
        found = None
        for digest, tenant in self._keys:
            if hmac.compare_digest(sent, digest):
                found = tenant
        return found if scheme.lower() == "bearer" else None


class _Body:
    """Counts a request body while it arrives.

    What a refusal leaves unread is uvicorn's to swallow: it keeps reading until the client has
    sent everything, so that the client gets to see the answer.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._n_bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._n_bytes += len(message.get("body", b""))
            if self._n_bytes > MAX_BODY_BYTES:
                raise ApiError(too_large())
        return message


def too_large() -> Problem:
    text = f"the request body is larger than {MAX_BODY_BYTES} bytes"
    return Problem(413, text, None, "request_too_large")


def _route(scope: Scope) -> str:
    """The route's pattern, so that paths that anyone can make up do not become labels."""
    path = getattr(scope.get("route"), "path", None)
    if path is not None:
        return str(path)
    # Starlette's own routes, as that of /openapi.json, leave an endpoint only; none has a pattern.
    return str(scope["path"]) if "endpoint" in scope else "unmatched"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
