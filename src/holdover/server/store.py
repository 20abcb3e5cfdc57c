"""Conversations and responses that were kept, in one SQLite file of all servers of a directory.

    conversations   what a client names: its last response, and until when it is pinned
    responses       one turn each, whole in itself: its messages, and its tokens as computed
    turns           hashes of messages, and what they were rendered with (`server.turns`)

Every question names the tenant, and what is another's is not there. Deleted rows are overwritten in
the file. Of each tenant the responses used last are kept, up to a number and a size. Called from
one thread at a time; raises sqlite3.Error.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdover.server.sealing import Sealer

_BUSY_S = 5.0  # until another server's transaction has ended
_SCHEMA = """
PRAGMA user_version = 1;
CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL,
    last TEXT, n_tokens INTEGER NOT NULL, n_turns INTEGER NOT NULL,
    pinned_until_s REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS conversations_of ON conversations (tenant, created_s, id);
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, conversation TEXT NOT NULL, used_s REAL NOT NULL,
    n_bytes INTEGER NOT NULL, body BLOB NOT NULL, tokens BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS responses_used ON responses (tenant, used_s, n_bytes);
CREATE INDEX IF NOT EXISTS responses_in ON responses (conversation);
CREATE TABLE IF NOT EXISTS turns (
    tenant TEXT NOT NULL, hash BLOB NOT NULL, state BLOB NOT NULL, used_s REAL NOT NULL,
    PRIMARY KEY (tenant, hash)) WITHOUT ROWID;
"""
_CONVERSATION = "id, tenant, created_s, used_s, last, n_tokens, n_turns, pinned_until_s, body"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Times are Unix times; `last` is the id of the response that is gone on from."""

    id: str
    tenant: str
    created_s: float
    used_s: float
    last: str | None = None
    n_tokens: int = 0
    n_turns: int = 0
    pinned_until_s: float = 0.0
    metadata: dict[str, str] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)  # messages before the first turn


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One turn. `messages` are those of the whole conversation, the answer last; of `tokens` the
    first `n_prompt` are the prompt as it was computed. The digests say what it was made with."""

    id: str
    tenant: str
    conversation: str
    parent: str | None
    n_turns: int
    n_prompt: int
    tokens: tuple[int, ...]
    messages: list[dict[str, Any]]
    text_digest: str
    chat_digest: str
    fingerprint: str
    reply: dict[str, Any]  # as the client got it


class Store:
    def __init__(
        self, path: Path | None, sealer: Sealer, *, most_responses: int, most_bytes: int
    ) -> None:
        """In memory where there is no path; the limits are for each tenant."""
        self._path = path
        self._sealer = sealer
        self._most_responses = most_responses
        self._most_bytes = most_bytes
        self._db = _opened(path)

    def secret(self) -> bytes:
        """Random, of the file: what hashes in it are keyed with."""
        with self._changing() as db:
            row = db.execute("SELECT value FROM secret").fetchone()
            if row is None:
                row = (secrets.token_bytes(32),)
                db.execute("INSERT INTO secret VALUES (?)", row)
            return bytes(row[0])

    # ---- conversations --------------------------------------------------------------------------

    def add_conversation(self, made: Conversation) -> None:
        with self._changing() as db:
            self._write(db, made)

    def conversation(self, tenant: str, name: str) -> Conversation | None:
        query = f"SELECT {_CONVERSATION} FROM conversations WHERE tenant = ? AND id = ?"
        row = self._db.execute(query, (tenant, name)).fetchone()
        return None if row is None else self._read(row)

    def conversations(
        self, tenant: str, after: Conversation | None, limit: int, descending: bool
    ) -> list[Conversation]:
        """By when they were created."""
        order, sign = ("DESC", "<") if descending else ("ASC", ">")
        where, values = "", []
        if after is not None:
            where = f"AND (created_s, id) {sign} (?, ?)"
            values = [after.created_s, after.id]
        query = (
            f"SELECT {_CONVERSATION} FROM conversations WHERE tenant = ? {where} "
            f"ORDER BY created_s {order}, id {order} LIMIT ?"
        )
        rows = self._db.execute(query, (tenant, *values, limit)).fetchall()
        return [found for row in rows if (found := self._read(row)) is not None]

    def pin(self, tenant: str, name: str, until_s: float) -> None:
        with self._changing() as db:
            db.execute(
                "UPDATE conversations SET pinned_until_s = ? WHERE tenant = ? AND id = ?",
                (until_s, tenant, name),
            )

    def pinned(self, now_s: float) -> list[Conversation]:
        """Everyone's that are pinned beyond `now_s`."""
        query = f"SELECT {_CONVERSATION} FROM conversations WHERE pinned_until_s > ?"
        rows = self._db.execute(query, (now_s,)).fetchall()
        return [found for row in rows if (found := self._read(row)) is not None]

    def delete_conversation(self, tenant: str, name: str) -> list[StoredResponse]:
        """With all of its responses, which are returned."""
        with self._changing() as db:
            gone = list(self._responses(db, "conversation = ?", tenant, name))
            db.execute(
                "DELETE FROM responses WHERE tenant = ? AND conversation = ?", (tenant, name)
            )
            db.execute("DELETE FROM conversations WHERE tenant = ? AND id = ?", (tenant, name))
        return gone

    # ---- responses ------------------------------------------------------------------------------

    def put(self, made: StoredResponse, new: Conversation | None = None) -> bool:
        """Keep a response as the last of its conversation, which is `new` or was there before.

        False, with nothing kept, if that was deleted meanwhile.
        """
        body, tokens = self._sealed(made)
        n_bytes, now_s = len(body) + len(tokens), time.time()
        with self._changing() as db:
            if new is not None:
                self._write(db, new)
            n_changed = db.execute(
                "UPDATE conversations SET last = ?, used_s = ?, n_tokens = ?, n_turns = ? "
                "WHERE tenant = ? AND id = ?",
                (made.id, now_s, len(made.tokens), made.n_turns, made.tenant, made.conversation),
            ).rowcount
            if not n_changed:
                return False
            row = (made.id, made.tenant, made.conversation, now_s, n_bytes, body, tokens)
            db.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if made.parent is not None:
                db.execute(
                    "UPDATE responses SET used_s = ? WHERE tenant = ? AND id = ?",
                    (now_s, made.tenant, made.parent),
                )
            self._make_room(db, made.tenant)
        return True

    def response(self, tenant: str, name: str) -> StoredResponse | None:
        return next(self._responses(self._db, "id = ?", tenant, name), None)

    def delete_response(self, tenant: str, name: str) -> StoredResponse | None:
        """Its conversation goes on from the one before, if that is kept; what was deleted."""
        with self._changing() as db:
            gone = next(self._responses(db, "id = ?", tenant, name), None)
            db.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, name))
            if gone is None:
                return None
            before = None if gone.parent is None else self.response(tenant, gone.parent)
            left: tuple[str | None, int, int] = (None, 0, 0)
            if before is not None and before.conversation == gone.conversation:
                left = (before.id, len(before.tokens), before.n_turns)
            db.execute(
                "UPDATE conversations SET last = ?, n_tokens = ?, n_turns = ? "
                "WHERE tenant = ? AND last = ?",
                (*left, tenant, name),
            )
        return gone

    def shared_tokens(self, tenant: str, tokens: Sequence[int]) -> int:
        """The longest beginning that a kept response of the tenant has in common with `tokens`."""
        mine, longest = np.asarray(tokens, np.int32), 0
        for name, sealed in self._db.execute(
            "SELECT id, tokens FROM responses WHERE tenant = ?", (tenant,)
        ):
            other = self._tokens(tenant, name, sealed)
            if other is not None:
                n = min(len(mine), len(other))
                same = mine[:n] == other[:n]
                longest = max(longest, n if same.all() else int(same.argmin()))
        return longest

    # ---- turns ----------------------------------------------------------------------------------

    def turns(self, most: int) -> list[tuple[str, bytes, bytes]]:
        """Tenant, hash and state of those used last, oldest first."""
        query = "SELECT tenant, hash, state FROM turns ORDER BY used_s DESC LIMIT ?"
        return self._db.execute(query, (most,)).fetchall()[::-1]

    def put_turns(
        self,
        rows: Sequence[tuple[str, bytes, bytes]],
        gone: Sequence[tuple[str, bytes]],
        most: int,
    ) -> None:
        now_s = time.time()
        with self._changing() as db:
            db.executemany("DELETE FROM turns WHERE tenant = ? AND hash = ?", gone)
            db.executemany(
                "INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", [(*row, now_s) for row in rows]
            )
            db.execute(
                "DELETE FROM turns WHERE (tenant, hash) IN "
                "(SELECT tenant, hash FROM turns ORDER BY used_s DESC LIMIT -1 OFFSET ?)",
                (most,),
            )

    def close(self) -> None:
        self._db.close()

    def start_again(self) -> None:
        """After damage: the file is moved aside, unless another server has done so already."""
        self._db.close()
        assert self._path is not None, "memory is not damaged"
        try:
            self._db = _opened(self._path)
            if self._db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                return
            self._db.close()
        except sqlite3.DatabaseError:
            pass  # as it is to be: it is damaged
        os.replace(self._path, self._path.with_suffix(".damaged"))
        for rest in ("-journal", "-wal", "-shm"):
            Path(f"{self._path}{rest}").unlink(missing_ok=True)
        self._db = _opened(self._path)

    # ---- within ---------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which no other server is in the middle of."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _make_room(self, db: sqlite3.Connection, tenant: str) -> None:
        """The last one used stays, whatever its size."""
        rows = db.execute(
            "SELECT rowid, n_bytes FROM responses WHERE tenant = ? "
            "ORDER BY used_s DESC, rowid DESC",
            (tenant,),
        )
        n_bytes, gone = 0, []
        for number, (rowid, size) in enumerate(rows):
            n_bytes += size
            if number and (number >= self._most_responses or n_bytes > self._most_bytes):
                gone.append((rowid,))
        if gone:
            db.executemany("DELETE FROM responses WHERE rowid = ?", gone)
            db.execute(
                "DELETE FROM conversations WHERE tenant = ? AND last IS NOT NULL "
                "AND last NOT IN (SELECT id FROM responses WHERE tenant = ?)",
                (tenant, tenant),
            )

    def _write(self, db: sqlite3.Connection, made: Conversation) -> None:
        body = json.dumps({"metadata": made.metadata, "items": made.items}).encode()
        sealed = self._sealer.seal(body, _place(made.tenant, made.id, "conversation"))
        row = (
            made.id, made.tenant, made.created_s, made.used_s, made.last, made.n_tokens,
            made.n_turns, made.pinned_until_s, sealed,
        )  # fmt: skip
        db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute(  # those that nobody used: of the others there are no more than responses
            "DELETE FROM conversations WHERE tenant = ? AND last IS NULL AND rowid IN ("
            "SELECT rowid FROM conversations WHERE tenant = ? AND last IS NULL "
            "ORDER BY used_s DESC LIMIT -1 OFFSET ?)",
            (made.tenant, made.tenant, self._most_responses),
        )

    def _read(self, row: tuple[Any, ...]) -> Conversation | None:
        *plain, sealed = row
        body = self._sealer.open(sealed, _place(plain[1], plain[0], "conversation"))
        return None if body is None else Conversation(*plain, **json.loads(body))

    def _responses(
        self, db: sqlite3.Connection, where: str, tenant: str, value: str
    ) -> Iterator[StoredResponse]:
        """Whole ones; a damaged one is not there."""
        query = f"SELECT id, body, tokens FROM responses WHERE tenant = ? AND {where}"
        for name, sealed, sealed_tokens in db.execute(query, (tenant, value)).fetchall():
            body = self._sealer.open(sealed, _place(tenant, name, "body"))
            tokens = self._tokens(tenant, name, sealed_tokens)
            if body is not None and tokens is not None:
                yield StoredResponse(
                    id=name, tenant=tenant, tokens=tuple(tokens.tolist()), **json.loads(body)
                )

    def _sealed(self, made: StoredResponse) -> tuple[bytes, bytes]:
        body = {
            name: getattr(made, name)
            for name in (
                "conversation", "parent", "n_turns", "n_prompt", "messages", "text_digest",
                "chat_digest", "fingerprint", "reply",
            )
        }  # fmt: skip
        tokens = np.asarray(made.tokens, "<i4").tobytes()
        seal = self._sealer.seal
        return (
            seal(json.dumps(body).encode(), _place(made.tenant, made.id, "body")),
            seal(tokens, _place(made.tenant, made.id, "tokens")),
        )

    def _tokens(self, tenant: str, name: str, sealed: bytes) -> Any:
        tokens = self._sealer.open(sealed, _place(tenant, name, "tokens"))
        return None if tokens is None else np.frombuffer(tokens, "<i4")


def forked(source: Conversation, turn: StoredResponse, name: str, response: str) -> StoredResponse:
    """A copy of a turn for another conversation, so that neither needs the other to be kept."""
    reply = {**turn.reply, "id": response, "conversation": {"id": name}}
    return replace(turn, id=response, conversation=name, parent=None, reply=reply)


def _place(tenant: str, name: str, what: str) -> bytes:
    return f"{what} {name} {tenant}".encode()


def _opened(path: Path | None) -> sqlite3.Connection:
    """Rows that are deleted are overwritten, and no log beside the file outlives a transaction."""
    if path is not None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.chmod(path, 0o600)  # the files that SQLite makes beside it get its mode
    db = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db
