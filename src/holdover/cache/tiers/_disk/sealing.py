"""Encryption at rest: AES-256-GCM, a key of its own for each file, a fresh nonce for each part.

What is stored in the clear of a sealed record: when it was stored, checksums of what is encrypted,
nonces. Without the key file nothing tells which tokens, which keys or how many.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from holdover.errors import ConfigError

KEY_FILE_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


class Cipher(Protocol):
    def seal(self, data: memoryview, room: memoryview, associated: bytes) -> bytes:
        """Encrypt `data` into `room`, TAG_BYTES longer (the same memory is fine); the nonce."""

    def open(self, room: memoryview, data: memoryview, nonce: bytes, associated: bytes) -> bool:
        """Decrypt; False for what was not sealed by `seal` with these."""


class AesGcm:
    def __init__(self, key: bytes, salt: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        self._aes = AESGCM(derive(key, salt, b"holdover segment"))

    def seal(self, data: memoryview, room: memoryview, associated: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        self._aes.encrypt_into(nonce, data, associated, room)
        return nonce

    def open(self, room: memoryview, data: memoryview, nonce: bytes, associated: bytes) -> bool:
        try:
            self._aes.decrypt_into(nonce, room, associated, data)
        except self._invalid:
            return False
        return True


def derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_FILE_BYTES, salt, purpose).derive(key)


def read_key(path: str, field: str) -> bytes:
    """The key in a file of 32 bytes or 64 hex digits. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4096)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(field, f"the key file {path} cannot be read: {reason}") from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError(
            field, f"others can read the key file {path}; run: chmod 600 {path} (or make a new key)"
        )
    if len(content) == KEY_FILE_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_FILE_BYTES:
        raise ConfigError(
            field,
            f"the key file {path} holds neither {KEY_FILE_BYTES} bytes nor {2 * KEY_FILE_BYTES} "
            f"hex digits; make one: (umask 077; openssl rand -hex {KEY_FILE_BYTES} > {path})",
        )
    return key
