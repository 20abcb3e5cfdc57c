"""How a segment file reads, and what of it is believed.

    header page | entry of slot 0, 1, ... | to a page | slot 0 | slot 1 | ...

    entry   state, when stored, payload's checksum, nonces | key, parent, n_tokens, tokens | tag
            | checksum of it all, of the header and of the slot's number
    slot    the block as it lies in the arena (encrypted: and a tag)

A record counts from the moment its entry is written, last: what a crash leaves is a free slot, or a
checksum that differs, which is a miss. Everything in a file may have been made by anyone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from holdover.cache.tiers._disk.sealing import NONCE_BYTES, TAG_BYTES, AesGcm, Cipher, derive
from holdover.cache.tiers.base import KEY_BYTES, Record
from holdover.units import ceil_div, round_up

PAGE_BYTES = 4096
FINGERPRINT_BYTES = 32
SALT_BYTES = 32
_DIGEST_BYTES = 16
_TOKEN_BYTES = 4
_MAGIC = b"HOLDOVER"
_VERSION = 1
# magic, version, group, fingerprint, salt, record, slot and entry bytes, block tokens, slots
_HEADER = struct.Struct(f"<8sII{FINGERPRINT_BYTES}s{SALT_BYTES}sQQIIQ")

HELD = 0x5AC3D1E7  # no single byte away from a free slot's 0 or from DOOMED
DOOMED = 0xA53C2E18  # being erased: to be finished by whoever finds it

Entries = NDArray[Any]
"""One structured element a slot; of a sealed file, already decrypted."""


class DamagedError(Exception):
    """A file that is not what its name says; the text says why."""


@dataclass(frozen=True, slots=True)
class Format:
    """What all segments of one group of one identity have in common."""

    group: int
    record_bytes: int
    block_tokens: int
    fingerprint: bytes
    key: bytes | None = None  # of the key file
    is_sealed: bool = False  # its slots hold tags, whether or not the key is at hand

    @classmethod
    def of(
        cls, group: int, record_bytes: int, block_tokens: int, identity: bytes, key: bytes | None
    ) -> Format:
        """With another key the records are another's: never opened, so never an error."""
        mark = derive(key, b"", b"holdover fingerprint") if key is not None else b""
        fingerprint = hashlib.blake2b(identity, digest_size=FINGERPRINT_BYTES, key=mark).digest()
        return cls(group, record_bytes, block_tokens, fingerprint, key, key is not None)

    @property
    def payload_bytes(self) -> int:
        return self.record_bytes + (TAG_BYTES if self.is_sealed else 0)

    @property
    def slot_bytes(self) -> int:
        return round_up(self.payload_bytes, PAGE_BYTES)

    @property
    def entry(self) -> np.dtype[Any]:
        return np.dtype(
            [
                ("state", "<u4"),
                ("stored_ns", "<u8"),
                ("payload", f"V{_DIGEST_BYTES}"),
                ("payload_nonce", f"V{NONCE_BYTES}"),
                ("nonce", f"V{NONCE_BYTES}"),
                ("key", f"V{KEY_BYTES}"),
                ("parent", f"V{KEY_BYTES}"),
                ("n_tokens", "<u4"),
                ("tokens", f"V{_TOKEN_BYTES * self.block_tokens}"),
                ("tag", f"V{TAG_BYTES}"),
                ("digest", f"V{_DIGEST_BYTES}"),
            ]
        )

    def entry_offset(self, slot: int) -> int:
        return PAGE_BYTES + slot * self.entry.itemsize

    def slot_offset(self, slot: int, n_slots: int) -> int:
        return round_up(self.entry_offset(n_slots), PAGE_BYTES) + slot * self.slot_bytes

    def file_bytes(self, n_slots: int) -> int:
        return self.slot_offset(n_slots, n_slots)

    def slots_in(self, n_bytes: int) -> int:
        """Most slots of a file of at most `n_bytes`."""
        n_slots = max(0, n_bytes - PAGE_BYTES) // (self.slot_bytes + self.entry.itemsize)
        return n_slots if not n_slots or self.file_bytes(n_slots) <= n_bytes else n_slots - 1


class SegmentFormat:
    """Reads and writes the parts of one file."""

    HEADER_BYTES = _HEADER.size + _DIGEST_BYTES

    def __init__(self, shape: Format, n_slots: int, salt: bytes, digest: bytes) -> None:
        self.shape = shape
        self.n_slots = n_slots
        self._digest = digest
        self._seed = int.from_bytes(digest[:8], "little")
        self._cipher: Cipher | None = None if shape.key is None else AesGcm(shape.key, salt)
        self._entry = shape.entry
        names = self._entry.fields
        assert names is not None
        self._private = slice(names["key"][1], names["tag"][1])
        self._room = slice(names["key"][1], names["digest"][1])
        self._nonce = slice(names["nonce"][1], names["key"][1])
        self._payload_digest = slice(names["payload"][1], names["payload_nonce"][1])
        self._payload_nonce = slice(names["payload_nonce"][1], names["nonce"][1])

    @classmethod
    def new(cls, shape: Format, n_slots: int, salt: bytes) -> tuple[SegmentFormat, bytes]:
        """And the header to begin the file with."""
        sizes = (shape.record_bytes, shape.slot_bytes, shape.entry.itemsize, shape.block_tokens)
        header = _HEADER.pack(
            _MAGIC, _VERSION, shape.group, shape.fingerprint, salt, *sizes, n_slots
        )
        digest = _hash(header)
        return cls(shape, n_slots, salt, digest), header + digest

    @classmethod
    def read(cls, header: bytes, file_bytes: int, shape: Format) -> SegmentFormat:
        """Raises DamagedError unless the file is exactly as long and as cut as it must be."""
        if not cls.is_header(header):
            raise DamagedError("its header's checksum differs")
        body, digest = header[: _HEADER.size], header[_HEADER.size : cls.HEADER_BYTES]
        magic, version, group, fingerprint, salt, *sizes, n_slots = _HEADER.unpack(body)
        if (magic, version) != (_MAGIC, _VERSION):
            raise DamagedError("it is of another version")
        expected = [shape.record_bytes, shape.slot_bytes, shape.entry.itemsize, shape.block_tokens]
        if (group, fingerprint, sizes) != (shape.group, shape.fingerprint, expected):
            raise DamagedError("it is of another model or layout")
        if n_slots > file_bytes // shape.slot_bytes or file_bytes != shape.file_bytes(n_slots):
            raise DamagedError("its length differs")
        return cls(shape, n_slots, salt, digest)

    @classmethod
    def described(cls, header: bytes, file_bytes: int) -> SegmentFormat:
        """By itself, whoever's it is, to look at what needs no key. Raises DamagedError."""
        if not cls.is_header(header):
            raise DamagedError("its header's checksum differs")
        body = header[: _HEADER.size]
        _, _, group, fingerprint, _, record_bytes, slot_bytes, _, block_tokens, _ = _HEADER.unpack(
            body
        )
        shape = Format(group, record_bytes, block_tokens, fingerprint)
        if slot_bytes != shape.slot_bytes:  # blocks of whole pages: a tag takes one more
            shape = replace(shape, is_sealed=True)
        return cls.read(header, file_bytes, shape)

    @classmethod
    def is_header(cls, header: bytes) -> bool:
        """Of any segment, this one's or another model's."""
        body, digest = header[: _HEADER.size], header[_HEADER.size : cls.HEADER_BYTES]
        return len(digest) == _DIGEST_BYTES and _hash(body) == digest

    # ---- entries ------------------------------------------------------------------------------

    def as_entries(self, raw: bytearray) -> Entries:
        """As they lie in the file, nothing verified: the same memory."""
        return np.frombuffer(raw, self._entry)

    def verify(self, raw: bytearray, slots: Sequence[int], first_slot: int = 0) -> list[int]:
        """Those of `slots` that hold records; `raw`, entries from `first_slot` on, is decrypted in
        place."""
        size, view, entries = self._entry.itemsize, memoryview(raw), self.as_entries(raw)
        is_held = (entries["state"] == HELD).tolist()
        found = []
        for slot in slots:
            at = slot - first_slot
            if is_held[at] and self._open_entry(view[at * size : (at + 1) * size], slot):
                found.append(slot)
        n_tokens = entries["n_tokens"].tolist()
        most = self.shape.block_tokens
        return [slot for slot in found if 0 < n_tokens[slot - first_slot] <= most]

    def held(self, raw: bytearray) -> list[int]:
        """Slots whose entries say that they hold a record."""
        return np.flatnonzero(self.as_entries(raw)["state"] == HELD).tolist()

    def intact(self, raw: bytearray, slots: Sequence[int]) -> list[int]:
        """Those whose entry has the checksum it should have, sealed or not."""
        size, view = self._entry.itemsize, memoryview(raw)
        entries = ((slot, view[slot * size : (slot + 1) * size]) for slot in slots)
        return [slot for slot, e in entries if self._entry_digest(e, slot) == e[-_DIGEST_BYTES:]]

    def is_payload(self, raw: bytearray, slot: int, stored: memoryview) -> bool:
        """Whether a slot's bytes have their entry's checksum, sealed or not."""
        digest = self.as_entries(raw)["payload"][slot].tobytes()
        n_bytes = self.shape.record_bytes
        return digest in (_hash(stored[:n_bytes]), _hash(stored[: n_bytes + TAG_BYTES]))

    def digest(self, entry: bytes) -> bytes:
        """Of an element's bytes."""
        return entry[-_DIGEST_BYTES:]

    def _open_entry(self, entry: memoryview, slot: int) -> bool:
        if self._entry_digest(entry, slot) != entry[-_DIGEST_BYTES:]:
            return False
        if self._cipher is None:
            return True
        fields, nonce = entry[: self._nonce.start], bytes(entry[self._nonce])
        bound = self._bound(slot, fields)
        return self._cipher.open(entry[self._room], entry[self._private], nonce, bound)

    def pack(
        self, record: Record, slot: int, stored_ns: int, payload: bytes, payload_nonce: bytes
    ) -> bytes:
        """An entry, as it is written."""
        entries = np.zeros(1, self._entry)
        entries["state"] = HELD
        entries["stored_ns"] = stored_ns
        entries["payload"] = np.void(payload)
        entries["payload_nonce"] = np.void(payload_nonce.ljust(NONCE_BYTES, b"\0"))
        entries["key"] = np.void(record.key)
        entries["parent"] = np.void(record.parent)
        entries["n_tokens"] = len(record.tokens) // _TOKEN_BYTES
        width = self._entry["tokens"].itemsize
        entries["tokens"] = np.void(record.tokens.ljust(width, b"\0"))
        raw = bytearray(entries.tobytes())
        view = memoryview(raw)
        if self._cipher is not None:
            bound = self._bound(slot, view[: self._nonce.start])
            view[self._nonce] = self._cipher.seal(view[self._private], view[self._room], bound)
        view[-_DIGEST_BYTES:] = self._entry_digest(view, slot)
        return bytes(raw)

    def doomed(self) -> bytes:
        """An entry whose slot is being erased."""
        return DOOMED.to_bytes(4, "little").ljust(self._entry.itemsize, b"\0")

    def names(self, entry: bytes, record: Record) -> bool:
        """Whether an element's bytes are of this very record."""
        named = _named(record)
        return entry[self._private.start : self._private.start + len(named)] == named

    def record(self, entry: Any) -> Record:
        """What an element of parsed entries names."""
        tokens = entry["tokens"].tobytes()[: int(entry["n_tokens"]) * _TOKEN_BYTES]
        return Record(entry["key"].tobytes(), entry["parent"].tobytes(), tokens, self.shape.group)

    # ---- payloads -----------------------------------------------------------------------------

    def seal(self, payload: memoryview, record: Record, slot: int) -> tuple[bytes, bytes]:
        """Make a slot's bytes, in place, of a block's in the first `record_bytes`; (checksum,
        nonce)."""
        nonce = b""
        if self._cipher is not None:
            data = payload[: self.shape.record_bytes]
            nonce = self._cipher.seal(data, payload, self._bound(slot, _named(record)))
        return _hash(payload), nonce

    def open(self, payload: memoryview, record: Record, slot: int, entry: bytes) -> bool:
        """Make a block's bytes of a slot's, in place; False unless they are what was stored."""
        if _hash(payload) != entry[self._payload_digest]:
            return False
        if self._cipher is None:
            return True
        nonce = entry[self._payload_nonce]
        data = payload[: self.shape.record_bytes]
        return self._cipher.open(payload, data, nonce, self._bound(slot, _named(record)))

    def _bound(self, slot: int, fields: memoryview | bytes) -> bytes:
        """What ties an encrypted part to its place and to what stands beside it."""
        return self._digest + slot.to_bytes(8, "little") + fields

    def _entry_digest(self, entry: memoryview, slot: int) -> bytes:
        return xxhash.xxh3_128_digest(entry[:-_DIGEST_BYTES], self._seed ^ slot)


def _named(record: Record) -> bytes:
    n_tokens = ceil_div(len(record.tokens), _TOKEN_BYTES)
    return record.key + record.parent + n_tokens.to_bytes(4, "little") + record.tokens


def _hash(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)
