"""The store of conversations in a thread of its own: neither the event loop nor the engine waits.

A damaged file is moved aside and a new one begun; a disk that is full or gone is an error of the
requests that need it, and of no other.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdover.cache.tiers._open import parse_tiers
from holdover.config import Config
from holdover.server.errors import ApiError, Problem
from holdover.server.limits import KEPT_BYTES_IN_FILE, KEPT_BYTES_IN_MEMORY, KEPT_RESPONSES
from holdover.server.sealing import Checked, Sealer, sealer_of
from holdover.server.store import Store

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Archive:
    def __init__(self, path: Path | None, sealer: Sealer, n_tenants: int) -> None:
        """In memory where there is no path, or where no file can be: the log says why."""
        self._path = path
        if path is not None:
            try:
                self._store = _in_file(path, sealer, KEPT_BYTES_IN_FILE // n_tenants)
            except (OSError, sqlite3.Error) as error:
                text = "conversations cannot be kept in %s (%s); they end with this server"
                _log.error(text, path, error)
                self._path = None
        if self._path is None:
            self._store = _store(None, Checked(), KEPT_BYTES_IN_MEMORY // n_tenants)
        self._thread = ThreadPoolExecutor(1, "holdover-store")

    async def ask(self, work: Callable[[Store], T]) -> T:
        """Raises ApiError where the store cannot be used."""
        try:
            return await asyncio.wrap_future(self.begin(work))
        except (OSError, sqlite3.Error) as error:
            _log.error("the store of conversations (%s): %s", self._path or "in memory", error)
            text = "the server's store of conversations cannot be used at the moment"
            raise ApiError(Problem(503, text, None, "store_unavailable")) from error

    async def find(self, look: Callable[[Store], T | None], missing: Problem) -> T:
        """What `look` gives. Raises ApiError: `missing` where that is None, else as `ask`."""
        found = await self.ask(look)
        if found is None:
            raise ApiError(missing)
        return found

    def tell(self, work: Callable[[Store], None]) -> None:
        """What nobody waits for; where it fails, the log says so."""

        def look(done: Future[None]) -> None:
            if (error := done.exception()) is not None:
                _log.error("the store of conversations (%s): %s", self._path or "in memory", error)

        self.begin(work).add_done_callback(look)

    def begin(self, work: Callable[[Store], T]) -> Future[T]:
        """In the order in which they are begun."""
        return self._thread.submit(self._guarded, work)

    def close(self) -> None:
        """After what was begun."""
        self._thread.submit(self._store.close)
        self._thread.shutdown()

    def _guarded(self, work: Callable[[Store], T]) -> T:
        try:
            return work(self._store)
        except sqlite3.DatabaseError as error:
            if self._path is None or not _is_damage(error):
                raise
            _log.error("%s is damaged (%s); it is moved aside", self._path, error)
            self._store.start_again()
            return work(self._store)


def open_archive(config: Config) -> Archive:
    """In the folder of the first tier that has one, else in memory."""
    specs = [spec for spec in parse_tiers(config.tiers) if spec.path is not None]
    n_tenants = max(1, len(config.api_keys))
    if not specs:
        return Archive(None, Checked(), n_tenants)
    sealer, folder = sealer_of(specs[0]), Path(str(specs[0].path))
    return Archive(folder / f"conversations{sealer.name}.sqlite", sealer, n_tenants)


def _in_file(path: Path, sealer: Sealer, most_bytes: int) -> Store:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _store(path, sealer, most_bytes)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        _log.error("%s is damaged (%s); it is moved aside", path, error)
        path.replace(path.with_suffix(".damaged"))
        return _store(path, sealer, most_bytes)


def _store(path: Path | None, sealer: Sealer, most_bytes: int) -> Store:
    return Store(path, sealer, most_responses=KEPT_RESPONSES, most_bytes=most_bytes)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    codes = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in codes
