"""`python serve_scripted.py STEP_S GRACE_S [PORT ANSWER]`: a server that is a process.

For signals and benchmarks. Without a port it takes any; it prints its URL when it is up.
"""

from __future__ import annotations

import sys

from scripted import ByteTokenizer, ScriptedEngine

from holdover.config import Config
from holdover.server.run import bind, serve


def main() -> None:
    step_s, grace_s = map(float, sys.argv[1:3])
    port, answer = sys.argv[3:] or ("0", "abcdefghij")
    serve(
        ScriptedEngine(lambda prompt: answer.encode(), step_s),
        ByteTokenizer(),
        Config(grace_s=grace_s),
        bind("127.0.0.1", int(port)),
        model_name="scripted",
        max_context_tokens=4096,
        on_ready=lambda url: print(url, flush=True),
        on_drain=lambda running: print(f"finishing {running}", flush=True),
    )
    print("ended", flush=True)


if __name__ == "__main__":
    main()
