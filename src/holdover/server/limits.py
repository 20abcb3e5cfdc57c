"""What one request may ask for. Every limit is named in the error that enforces it."""

from __future__ import annotations

MAX_BODY_BYTES = 4 << 20
"""Largest request body; counted while it arrives, whatever Content-Length says."""
MAX_BODY_S = 60.0
"""Seconds a request body may take to arrive."""
MAX_IDLE_S = 75
"""Seconds a connection may be without a whole request head; above what clients and proxies use to
keep one open, so that they close first."""
SPARE_CONNECTIONS = 256
"""Connections beside those of requests that run or wait: idle ones, health checks, scrapes."""
MAX_ANSWERS = 128
"""Most answers of one request: prompts times `n`."""
MAX_STOP = 16
"""Most stop strings of one request."""
MAX_STOP_CHARS = 1024
"""Longest stop string."""
MAX_LOGIT_BIAS = 1024
"""Most tokens in `logit_bias`."""
MAX_INT = 2**31 - 1
"""Largest integer of a request, `seed` apart."""
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
INLINE_CHARS = 16_384
"""Texts up to this length are tokenized on the event loop (about 2 ms), longer ones in a thread."""
DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions when not given, as OpenAI has it."""
LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
KEPT_RESPONSES = 10_000
"""Most responses kept for one API key, and most conversations; those used longest ago go first."""
KEPT_BYTES_IN_FILE, KEPT_BYTES_IN_MEMORY = 256 << 20, 16 << 20
"""Of kept responses, their messages and tokens, shared out equally among API keys: in the folder of
a disk tier, or without one."""
KEPT_TURNS = 4096
"""Histories of which is remembered what they were rendered with, over all API keys."""
EXPLAINED_REQUESTS = 1024
"""Requests of one API key that /v1/explain knows, the last ones."""
MAX_PIN_S = 30 * 86400
"""Longest `ttl_s` of a pin."""
