"""The OpenAI-compatible HTTP server: `create_app` for the application, `serve` to run it.

Built on `engine.api` and `text.tokenizer` only: no sequence, block or tensor is touched here.
"""
