"""Test the encryption of the Aiven plugin: data keys and chunks are decrypted, or refused without showing a secret."""

from __future__ import annotations

import os
import pickle
import traceback

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from builders.aiven_writer import make_keys, wrap_data_key
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.aiven.chunks import restore_chunk
from coldlog.formats.aiven.encryption import ChunkCipher, PrivateKey, read_private_key
from coldlog.formats.aiven.manifest import Encryption, read_aiven_manifest
from worlds.aiven_sample import archive_of, key_files

KEYS, OTHERS = make_keys(), make_keys()
DATA_KEY, AAD, IV = bytes(range(32)), b"additional", bytes(12)
PRIVATE, OTHER = read_private_key(KEYS.pem), read_private_key(OTHERS.pem)


def encryption(wrapped: bytes) -> Encryption:
    return Encryption(key_id="key1", wrapped_data_key=wrapped, aad=AAD)


def encrypted(content: bytes) -> bytes:
    return IV + AESGCM(DATA_KEY).encrypt(IV, content, AAD)


@given(st.binary(max_size=300))
def test_data_encrypted_for_a_key_is_decrypted_with_it(content: bytes) -> None:
    cipher = PRIVATE.unwrap(encryption(wrap_data_key(DATA_KEY, KEYS.private)))
    assert cipher.decrypt(memoryview(encrypted(content))) == content


def test_keys_that_the_plugin_wrapped_are_unwrapped_for_either_size_of_key() -> None:
    seen = set()
    for variant in ("encrypted", "zstd-encrypted"):
        keys = {key_id: read_private_key(path.read_bytes()) for key_id, path in key_files(variant).items()}
        for path in archive_of(variant).glob("*/*/*.rsm-manifest"):
            own = read_aiven_manifest(memoryview(path.read_bytes())).encryption
            assert own is not None
            keys[own.key_id].unwrap(own)
            seen.add((own.key_id, len(own.wrapped_data_key)))
    assert seen == {("key1", 512), ("key2", 256)}


def refused(key: PrivateKey, wrapped: bytes) -> ArchiveError:
    with pytest.raises(ArchiveError) as raised:
        key.unwrap(encryption(wrapped))
    assert raised.value.reason is Reason.DECRYPTION_FAILED
    return raised.value


def test_another_key_a_damaged_wrapping_and_a_key_of_another_size_are_refused() -> None:
    wrapped = wrap_data_key(DATA_KEY, KEYS.private)
    refused(OTHER, wrapped)
    refused(PRIVATE, wrapped[:-1])
    refused(PRIVATE, b"")
    refused(PRIVATE, b"\xff" * len(wrapped))
    refused(PRIVATE, wrap_data_key(DATA_KEY[:16], KEYS.private))
    for at in range(0, len(wrapped), 17):
        refused(PRIVATE, wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :])


def test_every_changed_byte_of_a_chunk_is_noticed() -> None:
    cipher, stored = ChunkCipher(DATA_KEY, AAD), encrypted(b"forty bytes of a log, more or less, here")
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 0x10
        with pytest.raises(ArchiveError) as raised:
            cipher.decrypt(memoryview(damaged))
        assert raised.value.reason is Reason.DECRYPTION_FAILED
    for cut in range(len(stored)):
        with pytest.raises(ArchiveError):
            cipher.decrypt(memoryview(stored)[:cut])
    with pytest.raises(ArchiveError):
        ChunkCipher(DATA_KEY, b"other data").decrypt(memoryview(stored))


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 400))
def test_any_bytes_are_a_chunk_of_the_requested_size_or_an_archive_error(
    stored: bytes, is_compressed: bool, size: int
) -> None:
    output = memoryview(bytearray(size))
    try:
        restore_chunk(memoryview(stored), output, ChunkCipher(DATA_KEY, AAD), is_compressed=is_compressed)
    except ArchiveError as wrong:
        assert wrong.reason is Reason.DECRYPTION_FAILED  # noqa: PT017 - either is right, nothing else is
    if is_compressed:
        try:
            restore_chunk(memoryview(stored), output, None, is_compressed=True)
        except ArchiveError as wrong:
            assert wrong.reason in (Reason.DECOMPRESSION_FAILED, Reason.DECOMPRESSION_LIMIT)  # noqa: PT017


def test_chunk_that_decompresses_to_another_size_is_refused() -> None:
    frame = memoryview(zstandard.ZstdCompressor().compress(bytes(100_000_000)))
    with pytest.raises(ArchiveError) as raised:
        restore_chunk(frame, memoryview(bytearray(1000)), None, is_compressed=True)
    assert raised.value.reason is Reason.DECOMPRESSION_LIMIT
    frame = memoryview(zstandard.ZstdCompressor().compress(bytes(999)))
    with pytest.raises(ArchiveError) as raised:
        restore_chunk(frame, memoryview(bytearray(1000)), None, is_compressed=True)
    assert (raised.value.reason, raised.value.found) == (Reason.DECOMPRESSION_FAILED, "999 bytes")


def test_secrets_are_neither_shown_nor_pickled() -> None:
    numbers = KEYS.private.private_numbers()
    cipher = PRIVATE.unwrap(encryption(wrap_data_key(DATA_KEY, KEYS.private)))
    for secret in (PRIVATE, cipher):
        with pytest.raises(TypeError):
            pickle.dumps(secret)
        for shown in (repr(secret), str(secret), f"{secret}"):
            assert shown == f"<{type(secret).__name__}>"
    try:
        OTHER.unwrap(encryption(wrap_data_key(DATA_KEY, KEYS.private)))
    except ArchiveError as wrong:
        text = "".join(traceback.format_exception(wrong)) + repr(pickle.dumps(wrong))
    for shown in (str(numbers.d), str(numbers.p), DATA_KEY.hex(), repr(DATA_KEY)):
        assert shown not in text


@pytest.mark.parametrize("content", [b"", b"no key", KEYS.pem[:500], os.urandom(300)])
def test_file_without_a_private_key_is_refused_without_its_content(content: bytes) -> None:
    with pytest.raises(UsageError) as raised:
        read_private_key(content)
    assert str(raised.value) == "it has no RSA private key in PEM without a passphrase"
    assert raised.value.__cause__ is None


def test_public_key_is_refused_as_a_public_key() -> None:
    path = key_files("encrypted")["key1"]
    public = path.with_name(path.name.replace("private", "public")).read_bytes()
    with pytest.raises(UsageError, match="it has a public key"):
        read_private_key(public)
