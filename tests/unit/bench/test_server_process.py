"""Servers under test end with whoever started them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from holdover.bench.server_process import serving


def test_sigterm_ends_the_server_too() -> None:
    command = f"{sys.executable} -m http.server {{port}} --bind 127.0.0.1"
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(SystemExit) as left,
        serving(command, "http://127.0.0.1:{port}/", {}, limit_s=30) as server,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    assert left.value.code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{server.pid}").exists()
    assert signal.getsignal(signal.SIGTERM) is before
