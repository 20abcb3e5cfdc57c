"""The application: routes over one engine, one tokenizer, one model."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import resources

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response

import holdover
from holdover.config import Config
from holdover.engine.api import SHUTTING_DOWN, EngineLike
from holdover.errors import RequestError
from holdover.server.archive import Archive, open_archive
from holdover.server.context import Context, Drain
from holdover.server.conversations import conversation_routes
from holdover.server.errors import ApiError, Problem, error_response, install
from holdover.server.explain import Book
from holdover.server.gate import Gate
from holdover.server.keeping import pin_what_was
from holdover.server.limits import EXPLAINED_REQUESTS, KEPT_TURNS
from holdover.server.mailbox import Mailbox
from holdover.server.metrics import Metrics
from holdover.server.protocol import DetokenizeRequest, TokenizeRequest
from holdover.server.replies import Detokenized, Model, ModelList, Tokens
from holdover.server.responses import response_routes
from holdover.server.routes import (
    check_model,
    encode_messages,
    generation_routes,
    off_loop,
    read,
    schema_of,
)
from holdover.server.store import Store
from holdover.server.tokens import TokenizerLike
from holdover.server.turns import Turns


def create_app(
    engine: EngineLike,
    tokenizer: TokenizerLike,
    config: Config,
    model_name: str,
    max_context_tokens: int,
    archive: Archive | None = None,
) -> FastAPI:
    """A FastAPI application; `app.state.drain` is what a runner needs to shut it down.

    The engine is the caller's: it must be running, and is not shut down with the application. The
    `archive`, by default the one of the configuration, is closed with it.
    """
    archive = archive or open_archive(config)
    turns = Turns(archive.begin(Store.secret).result())
    turns.recall(archive.begin(lambda store: store.turns(KEPT_TURNS)).result())
    context = Context(
        engine=engine,
        tokenizer=tokenizer,
        config=config,
        model_name=model_name,
        max_context_tokens=max_context_tokens,
        created=int(time.time()),
        mailbox=Mailbox(),
        metrics=Metrics(engine),
        drain=Drain(),
        book=Book(tokenizer, config.share_prefixes and len(config.api_keys) > 1),
        turns=turns,
        archive=archive,
        log_request=_to_stderr if config.log_requests else None,
    )
    app = FastAPI(
        title="Holdover",
        version=holdover.__version__,
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_closing(context),
    )
    app.state.drain = context.drain
    install(app)
    app.add_middleware(Gate, context=context)
    app.include_router(generation_routes(context))
    app.include_router(response_routes(context))
    app.include_router(conversation_routes(context))
    _model_routes(app, context)
    _token_routes(app, context)
    _operation_routes(app, context)
    return app


def _closing(context: Context) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pin_what_was(context)
        yield
        context.flush_turns()
        await asyncio.to_thread(context.archive.close)

    return lifespan


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _model_routes(app: FastAPI, context: Context) -> None:
    model = Model(
        id=context.model_name, created=context.created, max_model_len=context.max_context_tokens
    )

    @app.get("/v1/models")
    async def models() -> ModelList:
        return ModelList(data=[model])

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> Model:
        check_model(context, model_id)
        return model


def _token_routes(app: FastAPI, context: Context) -> None:
    tokenizer = context.tokenizer

    @app.post("/tokenize", openapi_extra=schema_of(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        asked = await read(request, TokenizeRequest)
        check_model(context, asked.model)
        ids: list[int]
        if asked.messages is not None:
            generate = asked.add_generation_prompt is not False
            ids = list(
                await encode_messages(context, asked.messages, generate, request.state.tenant)
            )
        else:
            text, special = asked.prompt or "", asked.add_special_tokens is not False
            ids = list(await off_loop(len(text), lambda: tokenizer.encode(text, special)))
        names = [tokenizer.token_text(i) for i in ids] if asked.return_token_strs else None
        reply = Tokens(
            count=len(ids), max_model_len=context.max_context_tokens, tokens=ids, token_strs=names
        )
        return Response(reply.model_dump_json(), media_type="application/json")

    @app.post("/detokenize", openapi_extra=schema_of(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        asked = await read(request, DetokenizeRequest)
        check_model(context, asked.model)
        for i, token in enumerate(asked.tokens):
            if not 0 <= token < tokenizer.vocab_size:
                known = f"they go from 0 to {tokenizer.vocab_size - 1}"
                raise RequestError(f"tokens[{i}]", f"tokens[{i}]: {token} is no token id; {known}")
        text = await off_loop(len(asked.tokens), lambda: tokenizer.decode(asked.tokens))
        return Response(Detokenized(prompt=text).model_dump_json(), media_type="application/json")


def _operation_routes(app: FastAPI, context: Context) -> None:
    page = resources.files("holdover.server").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/health")
    async def health() -> Response:
        drain = context.drain
        if drain.draining or drain.engine_gone:
            text = "the server is shutting down" if drain.draining else "the engine has stopped"
            return error_response(Problem(503, text, None, SHUTTING_DOWN))
        return JSONResponse({"status": "ok"})

    @app.get("/v1/explain/{request_id}")
    async def explain(request: Request, request_id: str) -> Response:
        found = context.book.explanation(request.state.tenant, request_id)
        if found is None:
            text = (
                f"no request {request_id[:80]!r} is known; the last {EXPLAINED_REQUESTS} of an API "
                "key are, from when they have ended"
            )
            raise ApiError(Problem(404, text, "request_id", "request_not_found"))
        return JSONResponse(found)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(context.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        policy = (
            "default-src 'self'; img-src data:; "  # the page's icon is an empty data: address
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
        )
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})
