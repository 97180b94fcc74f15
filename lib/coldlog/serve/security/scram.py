"""SCRAM of RFC 5802 and 7677 as a server, with Kafka's mechanisms SCRAM-SHA-256 and SCRAM-SHA-512.

    client: n,,n=<user>,r=<nonce>
    server: r=<nonce><more>,s=<salt>,i=<iterations>
    client: c=biws,r=<nonce><more>,p=<proof>
    server: v=<signature>

Neither side learns the password: the server keeps `stored_key` to check the proof and `server_key` to sign. Channel
binding and delegation tokens are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass

from coldlog.errors import ColdlogError

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
LEAST_ITERATIONS = 4096
_MOST_ITERATIONS = 1_000_000
_NO_BINDING = ("n,,", "y,,")


class AuthenticationError(ColdlogError):
    """The client is not who it says, or does not speak the mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What is kept of a password."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        parts = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return ":".join([str(self.iterations), *parts])

    def has_password(self, password: str) -> bool:
        """Whether this is the password."""
        made = hash_password(password, self.mechanism, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def hash_password(
    password: str, mechanism: str, *, salt: bytes | None = None, iterations: int = LEAST_ITERATIONS
) -> Credential:
    """Return what is to be kept of a password."""
    digest, salt = DIGESTS[mechanism], secrets.token_bytes(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return Credential(
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", digest),
    )


def parse_credential(text: str, mechanism: str) -> Credential:
    """Read a credential as `str` writes it. Raise `ValueError` if it is none."""
    iterations, *parts = text.split(":")
    salt, stored_key, server_key = (b64decode(part, validate=True) for part in parts)
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    if not LEAST_ITERATIONS <= int(iterations) <= _MOST_ITERATIONS or {len(stored_key), len(server_key)} != {size}:
        raise ValueError(f"not a credential of {mechanism}")
    return Credential(
        mechanism=mechanism, iterations=int(iterations), salt=salt, stored_key=stored_key, server_key=server_key
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    """The client's first message."""

    user: str
    nonce: str
    header: str
    bare: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Read the client's first message."""
    text = _text(message)
    header, bare = text[:3], text[3:]
    fields = bare.split(",")
    if header not in _NO_BINDING or len(fields) != 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
        raise AuthenticationError("not a first message of SCRAM without channel binding")
    user = fields[0][2:].replace("=2C", ",").replace("=3D", "=")
    if not user or not fields[1][2:]:
        raise AuthenticationError("a first message of SCRAM without user or nonce")
    return ClientFirst(user=user, nonce=fields[1][2:], header=header, bare=bare)


class ScramExchange:
    """The server's side of one authentication. `nonce` is the server's part of it, by default a random one."""

    def __init__(self, first: ClientFirst, credential: Credential, nonce: str | None = None) -> None:
        self._first = first
        self._credential = credential
        self._nonce = first.nonce + (secrets.token_urlsafe(24) if nonce is None else nonce)
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"

    def challenge(self) -> bytes:
        """Return the server's first message."""
        return self._server_first.encode()

    def finish(self, message: bytes) -> bytes:
        """Check the proof, and return the server's signature."""
        text = _text(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        binding = b64encode(self._first.header.encode()).decode()
        if without_proof != f"c={binding},r={self._nonce}":
            raise AuthenticationError("a last message of SCRAM that does not fit the first")
        try:
            proof = b64decode(proof_text, validate=True)
        except ValueError as unfit:
            raise AuthenticationError("a proof of SCRAM that is not base64") from unfit
        digest = DIGESTS[self._credential.mechanism]
        signed = f"{self._first.bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(self._credential.stored_key, signed, digest)
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=False))
        found = hashlib.new(digest, client_key).digest()
        if len(proof) != len(signature) or not hmac.compare_digest(found, self._credential.stored_key):
            raise AuthenticationError("wrong user or password")
        return b"v=" + b64encode(hmac.digest(self._credential.server_key, signed, digest))


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as unfit:
        raise AuthenticationError("a message of SCRAM that is not text") from unfit
