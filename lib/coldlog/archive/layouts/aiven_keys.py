"""aiven_keys: which private keys are there to decrypt an archive with?

The environment variable `COLDLOG_DECRYPTION_KEYS` names a file for each pair of keys, by the id that the plugin's
`encryption.key.pairs` gives it:

    COLDLOG_DECRYPTION_KEYS=key1=/etc/coldlog/key1.private.pem,key2=/etc/coldlog/key2.private.pem

A file holds an RSA private key in PEM (PKCS#8, as the plugin wants it, without a passphrase). It is read where bytes
are decrypted: on a cluster every executor needs the variable and the files. Neither keys nor the variable's text are
kept, printed or pickled; a key that was read stays in the memory of its process.

An id without a file is no error here, but one of the segments that need it. `UsageError`: a variable that cannot be
understood, an id given twice, a path that is not absolute, a file that cannot be read or holds no such key.
"""

from __future__ import annotations

import os
from functools import lru_cache

from coldlog.errors import UsageError
from coldlog.formats.aiven.encryption import PrivateKey, read_private_key

ENVIRONMENT_VARIABLE = "COLDLOG_DECRYPTION_KEYS"
_MAX_KEY_FILE_BYTES = 64 * 1024


def list_key_ids() -> frozenset[str]:
    """The ids that the environment names a file for."""
    return frozenset(_key_files())


def require_keys() -> None:
    """Reads every key that is named, so that a wrong name is told before any work is done."""
    for key_id in _key_files():
        find_private_key(key_id)


def find_private_key(key_id: str) -> PrivateKey | None:
    """The private key of that id."""
    path = _key_files().get(key_id)
    if path is None:
        return None
    try:
        status = os.stat(path)
        return _read(path, status.st_mtime_ns, status.st_size)
    except (OSError, UsageError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else str(wrong)
        raise UsageError(f"the file {path} that {ENVIRONMENT_VARIABLE} names for key {key_id!r}: {why}") from None


@lru_cache(maxsize=16)
def _read(path: str, _modified_ns: int, _size_bytes: int) -> PrivateKey:
    """Once for each state of a file: it takes a tenth of a second."""
    with open(path, "rb") as file:
        return read_private_key(file.read(_MAX_KEY_FILE_BYTES))


def _key_files() -> dict[str, str]:
    """What is not understood is not shown: it may be the key itself, put there by mistake."""
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
