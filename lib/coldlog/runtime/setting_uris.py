"""setting_uris: which place does a setting name, and does a text hold what must not be shown?

A uri of the scheme `file` becomes the path it means, without percent escapes; every other one stays as it is written.
Refused with `UsageError`, and not repeated: a user, a password, a signature in a uri.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from coldlog.errors import UsageError
from coldlog.runtime.settings import Uri

_SECRET = re.compile(
    r"secret|passw|token|passphrase|private[._-]?key|access[._-]?key|api[._-]?key|credentials?$", re.IGNORECASE
)
_URI_WITH_PASSWORD = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]*@", re.IGNORECASE)
_STORE = r"(?:s3[an]?|gs|abfss?|wasbs?|adl|oss|obs|cosn?|swift|https?):/+"
"""Where links are signed: the signature stands behind a `?`. A slash is soon forgotten."""
_SIGNED_URI = re.compile(rf"(?<![a-z0-9+.-]){_STORE}[^\s,]*(?:\?|X-Amz-)", re.IGNORECASE)
_URI_WITH_QUERY = re.compile(rf"{_STORE}.*[?#]", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>.*)", re.IGNORECASE | re.DOTALL)


def is_secret_key(key: str) -> bool:
    """What is set under such a name is a credential."""
    return _SECRET.search(key) is not None


def names_a_secret(text: str) -> bool:
    """Whether a text of any kind, a list of uris too, names a user with a password, or a signed link."""
    return any(_URI_WITH_PASSWORD.search(each) or _SIGNED_URI.search(each) for each in (text, _decoded(text)))


def absolute_uri(text: str, named: str, directory: Path) -> Uri:
    """A place as every part of coldlog takes it: a path or a uri. `named` is the setting in messages, `directory` what
    a relative path is relative to."""
    file = _FILE.fullmatch(text)
    if file is not None:
        return Uri(_path_of_file_uri(file["host"] or "", file["path"], named))
    if _SCHEME.match(text):
        if _holds_a_secret(text):
            raise UsageError(
                f"{named}: the uri holds a user, a password or a signature (it is not shown): take them out, and "
                "what stands behind a ? or #; credentials come from the environment or the AWS profile"
            )
        return Uri(text.rstrip("/"))
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{named} = {text!r}: there is no such user's home; give an absolute path") from error
    return Uri(str((directory / path).absolute()))


def _path_of_file_uri(host: str, path: str, named: str) -> str:
    """As `coldlog.archive.open_archive` reads it; that a path may hold `?` and `#` is more than it takes."""
    if host.lower() not in ("", "localhost") or not path.startswith("/"):
        raise UsageError(
            f"{named}: a uri of the scheme file names a path of this machine, and no host (it is not shown): give "
            "file:///directory, or the path alone"
        )
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"{named}: the percent escapes of the uri are not UTF-8; give the path alone") from error
    return str(Path("/" + decoded.lstrip("/")))


def _holds_a_secret(uri: str) -> bool:
    """A secret key may hold a `/`, so that what is before the first one is not all of it; a bucket has no port."""
    scheme, _, rest = uri.partition("://")
    authority = _decoded(rest.partition("/")[0])
    is_user = "@" in authority or (scheme.lower().startswith("s3") and ":" in authority)
    return is_user or "X-Amz-" in uri or _URI_WITH_QUERY.match(uri) is not None


def _decoded(text: str) -> str:
    """Without percent escapes, however often they were escaped themselves."""
    while (decoded := unquote(text)) != text:
        text = decoded
    return text
