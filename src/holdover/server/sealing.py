"""What the store of conversations writes, so that nothing damaged is ever read as if it were whole.

Without a key a checksum goes before the data; with the key file of a disk tier it is encrypted with
AES-256-GCM under a key derived from it. `associated` is what the data belongs to: what is found in
another's place does not open.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from holdover.cache.tiers._disk.sealing import read_key
from holdover.cache.tiers.base import TierSpec

_CHECK_BYTES = 16
_NONCE_BYTES = 12


class Sealer(Protocol):
    @property
    def name(self) -> str:
        """Part of the file's name: what was sealed with another key is in another file."""

    def seal(self, data: bytes, associated: bytes) -> bytes: ...

    def open(self, sealed: bytes, associated: bytes) -> bytes | None:
        """None for what `seal` did not give for these."""


class Checked:
    name = ""

    def seal(self, data: bytes, associated: bytes) -> bytes:
        return _check(data, associated) + data

    def open(self, sealed: bytes, associated: bytes) -> bytes | None:
        data = sealed[_CHECK_BYTES:]
        return data if sealed[:_CHECK_BYTES] == _check(data, associated) else None


class Encrypted:
    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        own = hashlib.blake2b(key=key, digest_size=32, person=b"holdover-store").digest()
        self._aes = AESGCM(own)
        self.name = "-" + hashlib.blake2b(own, digest_size=4, person=b"holdover-name").hexdigest()

    def seal(self, data: bytes, associated: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, data, associated)

    def open(self, sealed: bytes, associated: bytes) -> bytes | None:
        try:
            return self._aes.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
        except (self._invalid, ValueError):
            return None


def sealer_of(spec: TierSpec | None) -> Sealer:
    """As the tier seals its blocks. Raises ConfigError for a key file that cannot be used."""
    if spec is None or spec.key_path is None:
        return Checked()
    return Encrypted(read_key(spec.key_path, "--tiers"))


def _check(data: bytes, associated: bytes) -> bytes:
    return hashlib.blake2b(data, key=associated[:64], digest_size=_CHECK_BYTES).digest()
