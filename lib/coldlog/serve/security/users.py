"""Read the users of an endpoint from a TOML file, which has hashes of their passwords.

    [alice]
    SCRAM-SHA-256 = "4096:<salt>:<stored key>:<server key>"
    SCRAM-SHA-512 = "4096:..."
    topics = ["orders", "payments.*"]
    groups = ["billing-*"]

`coldlog serve --hash-password alice` writes the mechanisms. A user without `topics` and `groups` may use all of both;
one with either may use only what is listed (`rights`). PLAIN is checked with either mechanism. An unknown user is asked
for a proof like a known one, so that nobody finds out who is known.
"""

from __future__ import annotations

import hmac
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.serve.security.rights import ALL_RIGHTS, NO_RIGHTS, Names, Rights, parse_names
from coldlog.serve.security.scram import DIGESTS, Credential, hash_password, parse_credential

_TOPICS, _GROUPS = "topics", "groups"


class Users:
    """Names, and of each the credentials by mechanism and the rights. A name without rights may use everything."""

    def __init__(
        self, credentials: Mapping[str, Mapping[str, Credential]], rights: Mapping[str, Rights] | None = None
    ) -> None:
        self._credentials = credentials
        self._rights = rights or {}
        self._secret = secrets.token_bytes(32)
        self._nobody = {each: hash_password(secrets.token_urlsafe(), each) for each in DIGESTS}

    def credential(self, user: str, mechanism: str) -> Credential:
        """Return a user's credential; one that no password fits for users that are not known."""
        known = self._credentials.get(user, {}).get(mechanism)
        if known is not None:
            return known
        nobody = self._nobody[mechanism]
        return Credential(
            mechanism=mechanism,
            iterations=nobody.iterations,
            salt=hmac.digest(self._secret, user.encode(), "sha256")[: len(nobody.salt)],
            stored_key=nobody.stored_key,
            server_key=nobody.server_key,
        )

    def rights(self, user: str) -> Rights:
        """Return what a user may use: nothing if it is not known."""
        return self._rights.get(user, ALL_RIGHTS) if user in self._credentials else NO_RIGHTS

    def has_password(self, user: str, password: str) -> bool:
        """Whether there is such a user with this password. It takes as long for any."""
        mechanism = next(iter(self._credentials.get(user, DIGESTS)))
        return self.credential(user, mechanism).has_password(password)


def read_users(path: str) -> Users:
    """Read the file. Raise `UsageError` if it cannot be read or names no user."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as unfit:
        why = unfit.strerror if isinstance(unfit, OSError) else unfit
        raise UsageError(f"the users cannot be read from {path}: {why}; correct serve.users") from unfit
    if not content:
        raise UsageError(f"{path} names no user; coldlog serve --hash-password NAME writes one")
    credentials = {user: _credentials(path, user, fields) for user, fields in content.items()}
    rights = {user: found for user, fields in content.items() if (found := _rights(path, user, fields)) is not None}
    return Users(credentials, rights)


def write_user(user: str, password: str) -> str:
    """Return the part of the file for a user."""
    quoted = user.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f'{mechanism} = "{hash_password(password, mechanism)}"' for mechanism in DIGESTS]
    return "\n".join([f'["{quoted}"]', *lines])


def _credentials(path: str, user: str, fields: object) -> dict[str, Credential]:
    try:
        if not isinstance(fields, dict) or not fields.keys() - {_TOPICS, _GROUPS}:
            raise ValueError("no mechanism")
        return {
            mechanism: parse_credential(str(text), mechanism)
            for mechanism, text in fields.items()
            if mechanism not in (_TOPICS, _GROUPS)
        }
    except (KeyError, ValueError) as unfit:
        raise UsageError(
            f"{path}: user {user!r} has no credential that can be read; mechanisms are {', '.join(DIGESTS)}; "
            "coldlog serve --hash-password NAME writes them"
        ) from unfit


def _rights(path: str, user: str, fields: Mapping[str, object]) -> Rights | None:
    """Return the rights of a user; None if the file says nothing about them."""
    if _TOPICS not in fields and _GROUPS not in fields:
        return None
    names: dict[str, Names] = {}
    for kind in (_TOPICS, _GROUPS):
        try:
            names[kind] = parse_names(fields.get(kind, []))
        except ValueError as unfit:
            raise UsageError(
                f'{path}: {kind} of user {user!r}: {unfit}; as in {kind} = ["name", "beginning*"]'
            ) from unfit
    return Rights(topics=names[_TOPICS], groups=names[_GROUPS])
