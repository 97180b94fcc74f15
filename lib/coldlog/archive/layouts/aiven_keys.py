"""Find the private keys that decrypt an archive of the Aiven plugin.

The environment variable `COLDLOG_DECRYPTION_KEYS` names one file for each key pair. The id is that of the plugin's
`encryption.key.pairs`:

    COLDLOG_DECRYPTION_KEYS=key1=/etc/coldlog/key1.private.pem,key2=/etc/coldlog/key2.private.pem

A file holds an RSA private key in PEM (PKCS#8, as the plugin needs it, without a passphrase). The process that decrypts
reads the file, so on a cluster every executor needs the variable and the files. Keys and the variable's text are not
stored, printed or pickled; a key that was read stays in the memory of its process.

An id without a file is not an error here; it is an error of each segment that needs the key. `UsageError`: a variable
that cannot be parsed, an id given twice, a path that is not absolute, a file that cannot be read or holds no such key.
"""

from __future__ import annotations

import os
from functools import lru_cache

from coldlog.errors import UsageError
from coldlog.formats.aiven.encryption import PrivateKey, read_private_key

ENVIRONMENT_VARIABLE = "COLDLOG_DECRYPTION_KEYS"
_MAX_KEY_FILE_BYTES = 64 * 1024


def list_key_ids() -> frozenset[str]:
    """The ids of the keys for which the environment names a file."""
    return frozenset(_key_files())


def require_keys() -> None:
    """Read every named key, so that a wrong file name is reported before any work starts."""
    for key_id in _key_files():
        find_private_key(key_id)


def find_private_key(key_id: str) -> PrivateKey | None:
    """The private key with this id, or None if the environment names no file for it."""
    path = _key_files().get(key_id)
    if path is None:
        return None
    try:
        status = os.stat(path)
        return _read(path, status.st_mtime_ns, status.st_size)
    except (OSError, UsageError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise UsageError(f"the file {path} that {ENVIRONMENT_VARIABLE} names for key {key_id!r}: {why}") from None


@lru_cache(maxsize=16)
def _read(path: str, _modified_ns: int, _size_bytes: int) -> PrivateKey:
    """Read a key once for each state of its file, because reading takes 0.1 s."""
    with open(path, "rb") as file:
        return read_private_key(file.read(_MAX_KEY_FILE_BYTES))


def _key_files() -> dict[str, str]:
    """Paths by key id. An error does not show the entry: it may be the key itself, put there by mistake."""
    files: dict[str, str] = {}
    for number, entry in enumerate(os.environ.get(ENVIRONMENT_VARIABLE, "").split(","), start=1):
        key_id, _, path = (part.strip() for part in entry.partition("="))
        if not entry.strip():
            continue
        if not key_id or not os.path.isabs(path):
            raise UsageError(
                f"entry {number} of {ENVIRONMENT_VARIABLE} is not <key id>=<absolute path of a file>; entries are "
                "separated by commas"
            )
        if key_id in files:
            raise UsageError(f"{ENVIRONMENT_VARIABLE} names two files for key {key_id!r}")
        files[key_id] = path
    return files
