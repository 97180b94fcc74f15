"""Decrypt segments that the Aiven plugin encrypted.

Each segment has its own AES-256 key, which is wrapped with an RSA public key: OAEP with SHA3-512 for the label and for
MGF1, and an empty label (RsaEncryptionProvider: RSA/NONE/OAEPWithSHA3-512AndMGF1Padding of Bouncy Castle). Each chunk
of the log and each index is encrypted by AES-256-GCM with the manifest's additional data (AesEncryptionProvider):

    initialization vector   12 bytes
    encrypted bytes         the size of the original
    tag                     16 bytes

There are two libraries: OpenSSL's AES, which `cryptography` calls, is 1.5 to 30 times as fast as pycryptodome's, but
`cryptography` 50 refuses OAEP with SHA3-512, which pycryptodome supports. Both are imported when they are used first:
that takes longer than most answers, and few archives are encrypted.

Secrets stay in the objects of this module: they have no readable repr, cannot be pickled, and appear in no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.aiven.manifest import ENCRYPTION_OVERHEAD_BYTES, Encryption

if TYPE_CHECKING:
    from Crypto.PublicKey import RSA

DATA_KEY_BYTES = 32
_IV_BYTES = 12


class _Secret:
    """A value that is never shown or pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} stays in the process that read it")


class PrivateKey(_Secret):
    """An RSA private key."""

    __slots__ = ("_key",)

    def __init__(self, key: RSA.RsaKey) -> None:
        self._key = key

    def unwrap(self, encryption: Encryption) -> ChunkCipher:
        """The cipher of a segment; DECRYPTION_FAILED if the data key is damaged or was wrapped for another key."""
        from Crypto.Cipher import PKCS1_OAEP
        from Crypto.Hash import SHA3_512

        cipher = PKCS1_OAEP.new(self._key, hashAlgo=SHA3_512)
        try:
            data_key = cipher.decrypt(encryption.wrapped_data_key)
        except ValueError:
            data_key = b""
        if len(data_key) != DATA_KEY_BYTES:
            raise ArchiveError(
                Reason.DECRYPTION_FAILED,
                f"data key cannot be unwrapped with the private key {encryption.key_id!a}: the key belongs to another "
                "pair with this name, or the manifest is damaged; give the right key and run with "
                "build.retry_quarantined=true",
                expected=f"a data key of {DATA_KEY_BYTES} bytes that was wrapped for this key",
                found="something else",
            )
        return ChunkCipher(data_key, encryption.aad)


class ChunkCipher(_Secret):
    """Decrypt the chunks and indexes of one segment."""

    __slots__ = ("_aad", "_cipher", "_wrong_tag")

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(data_key)
        self._wrong_tag = InvalidTag
        self._aad = aad

    def decrypt(self, stored: memoryview) -> memoryview:
        """The original of a chunk or an index; DECRYPTION_FAILED if its bytes, its tag or the additional data
        differ."""
        output = memoryview(bytearray(max(0, len(stored) - ENCRYPTION_OVERHEAD_BYTES)))
        self.decrypt_into(stored, output)
        return output.toreadonly()

    def decrypt_into(self, stored: memoryview, output: memoryview) -> None:
        """As `decrypt`, into memory of the original's size; its content is undefined after an error."""
        if len(stored) - ENCRYPTION_OVERHEAD_BYTES != len(output):
            raise _damaged(f"{len(stored)} bytes for {len(output)}")
        try:
            self._cipher.decrypt_into(stored[:_IV_BYTES], stored[_IV_BYTES:], self._aad, output)
        except self._wrong_tag:
            raise _damaged("another tag") from None


def read_private_key(pem: bytes) -> PrivateKey:
    """The RSA key of a PEM file without a passphrase (PKCS#8 or PKCS#1); a `UsageError` does not show its content."""
    from Crypto.PublicKey import RSA

    try:
        key = RSA.import_key(pem)
    except (ValueError, IndexError, TypeError):
        raise UsageError("it has no RSA private key in PEM without a passphrase") from None
    if not key.has_private():
        raise UsageError("it has a public key; give the private key of the pair")
    return PrivateKey(key)


def _damaged(found: str) -> ArchiveError:
    return ArchiveError(
        Reason.DECRYPTION_FAILED, "encrypted bytes are damaged", expected="bytes that match their tag", found=found
    )
