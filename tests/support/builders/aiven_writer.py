"""Write the objects that the Aiven plugin makes of a segment's six files.

Written from the plugin's description of its formats, independently of the parsers that it tests: the chunk list is
packed by struct, the data key is wrapped by hand-written OAEP over a raw RSA power.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zstandard
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

INDEX_NAMES = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenSegment:
    """The ids of a segment and its files; `transaction` is None if no transaction was aborted."""

    topic: str = "orders"
    topic_id: str = "AAAAAAAAAAAAAAAAAAAAAA"
    partition: int = 0
    start_offset: int = 0
    segment_id: str = "BBBBBBBBBBBBBBBBBBBBBA"
    log: bytes = b""
    indexes: Mapping[str, bytes | None] = field(default_factory=lambda: {name: name.encode() for name in INDEX_NAMES})

    @property
    def main_path(self) -> str:
        """The key without prefix and suffix."""
        place = f"{self.topic}-{self.topic_id}/{self.partition}"
        return f"{place}/{self.start_offset:020d}-{self.segment_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A key pair and its id."""

    key_id: str
    private: rsa.RSAPrivateKey

    @property
    def pem(self) -> bytes:
        """The private key in the plugin's format."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_keys(key_id: str, pem: bytes) -> Keys:
    """The pair of a private key in PEM."""
    private = load_pem_private_key(pem, None)
    assert isinstance(private, rsa.RSAPrivateKey)
    return Keys(key_id=key_id, private=private)


def make_keys(key_id: str = "key1", bits: int = 2048) -> Keys:
    """A new key pair."""
    return Keys(key_id=key_id, private=rsa.generate_private_key(65537, bits))


def write_aiven_segment(
    segment: AivenSegment, *, chunk_bytes: int = 64, is_compressed: bool = False, keys: Keys | None = None,
    prefix: str = "",
) -> dict[str, bytes]:  # fmt: skip
    """The three objects by name."""
    data_key, aad = os.urandom(32), os.urandom(32)

    def encrypt(content: bytes) -> bytes:
        if keys is None:
            return content
        iv = os.urandom(12)
        return iv + AESGCM(data_key).encrypt(iv, content, aad)

    chunks = [segment.log[at : at + chunk_bytes] for at in range(0, len(segment.log), chunk_bytes)]
    compressor = zstandard.ZstdCompressor()
    stored = [encrypt(compressor.compress(chunk) if is_compressed else chunk) for chunk in chunks]
    ranges, indexes = {}, b""
    for name in INDEX_NAMES:
        content = segment.indexes[name]
        kept = b"" if not content else encrypt(content)
        ranges[name] = None if content is None else {"position": len(indexes), "size": len(kept)}
        indexes += kept
    overhead = 0 if keys is None else 28
    index: dict[str, object] = {
        "type": "variable" if is_compressed else "fixed",
        "originalChunkSize": chunk_bytes,
        "originalFileSize": len(segment.log),
    }
    if is_compressed:
        packed = zstandard.ZstdCompressor().compress(pack_sizes([len(chunk) for chunk in stored]))
        index["transformedChunks"] = base64.b64encode(packed).decode()
    else:
        index["transformedChunkSize"] = chunk_bytes + overhead
        index["finalTransformedChunkSize"] = len(stored[-1]) if stored else 0
    manifest: dict[str, object] = {
        "version": "1", "chunkIndex": index, "segmentIndexes": ranges, "compression": is_compressed,
    }  # fmt: skip
    if keys is not None:
        wrapped = base64.b64encode(wrap_data_key(data_key, keys.private)).decode()
        manifest["encryption"] = {"dataKey": f"{keys.key_id}:{wrapped}", "aad": base64.b64encode(aad).decode()}
    manifest["remoteLogSegmentMetadata"] = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": segment.topic_id,
                "topicPartition": {"topic": segment.topic, "partition": segment.partition},
            },
            "id": segment.segment_id,
        },
        "startOffset": segment.start_offset,
        "endOffset": segment.start_offset,
        "maxTimestampMs": 1,
        "brokerId": 1,
        "eventTimestampMs": 2,
        "segmentLeaderEpochs": {"0": segment.start_offset},
    }
    stem = prefix + segment.main_path
    text = json.dumps(manifest, separators=(",", ":")).encode()
    return {f"{stem}.log": b"".join(stored), f"{stem}.indexes": indexes, f"{stem}.rsm-manifest": text}


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """The chunk list before it is compressed."""
    if len(sizes) < 2:
        return struct.pack(">i", len(sizes)) + b"".join(struct.pack(">i", size) for size in sizes)
    base = min(sizes[:-1])
    width = next(width for width in (1, 2, 3, 4) if max(sizes[:-1]) - base < 256**width)
    differences = b"".join(struct.pack(">I", size - base)[4 - width :] for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), base, width) + differences + struct.pack(">i", sizes[-1])


def wrap_data_key(data_key: bytes, private: rsa.RSAPrivateKey) -> bytes:
    """RSAES-OAEP (RFC 8017, 7.1.1) with SHA3-512 for the label and MGF1."""
    numbers = private.public_key().public_numbers()
    size, digest = (numbers.n.bit_length() + 7) // 8, hashlib.sha3_512
    block = digest(b"").digest() + bytes(size - len(data_key) - 2 * 64 - 2) + b"\x01" + data_key
    seed = os.urandom(64)
    masked = _xor(block, _mgf1(seed, len(block)))
    padded = b"\x00" + _xor(seed, _mgf1(masked, 64)) + masked
    return pow(int.from_bytes(padded, "big"), numbers.e, numbers.n).to_bytes(size, "big")


def _mgf1(seed: bytes, length: int) -> bytes:
    blocks = (hashlib.sha3_512(seed + struct.pack(">I", at)).digest() for at in range(-(-length // 64)))
    return b"".join(blocks)[:length]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
