"""Read the URI or path of a setting, and recognize texts that hold a credential.

A URI with the scheme `file` becomes a path without percent escapes. Every other URI stays as it is written. Refused: a
URI with a user, a password or a signature; the `UsageError` does not repeat it. A warehouse is also refused if Spark
and delta-rs would take its name for different places.
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
_ADDRESS_WITH_PASSWORD = re.compile(r"(?:^|,)\s*[^/@\s,:]+:[^/@\s,]*@")
"""As an element of bootstrap servers, which have no scheme."""
_JAVA_PROPERTY = re.compile(r"(?:^|\s)-D([^\s=]+)=")
_STORE = r"(?:s3[an]?|gs|abfss?|wasbs?|adl|oss|obs|cosn?|swift|https?):/+"
"""Schemes of stores whose links can be signed; the signature follows a `?`. One slash is enough: users forget one."""
_SIGNED_URI = re.compile(rf"(?<![a-z0-9+.-]){_STORE}[^\s,]*(?:\?|X-Amz-)", re.IGNORECASE)
_URI_WITH_QUERY = re.compile(rf"{_STORE}.*[?#]", re.IGNORECASE | re.DOTALL)
_ONE_SLASH = re.compile(r"^(?:s3[an]?|gs|abfss?|wasbs?|hdfs|https?):/(?!/)", re.IGNORECASE)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_FILE = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>.*)", re.IGNORECASE | re.DOTALL)


def is_secret_key(key: str) -> bool:
    """Whether the value of a key with this name is a credential."""
    return _SECRET.search(key) is not None


def names_a_secret(text: str) -> bool:
    """Whether a text, such as a list of URIs or options of Java, holds a password or a signed link."""
    if any(is_secret_key(name) for name in _JAVA_PROPERTY.findall(text)):
        return True
    patterns = (_URI_WITH_PASSWORD, _ADDRESS_WITH_PASSWORD, _SIGNED_URI)
    return any(pattern.search(form) for pattern in patterns for form in (text, _decoded(text)))


def require_known_store(uri: str, named: str) -> None:
    """Raise `UsageError` if the uri of a warehouse names a store to which coldlog cannot write tables safely."""
    scheme, separator, _ = uri.partition("://")
    if separator and _SCHEME.match(uri) and scheme.lower() not in ("s3", "s3a", "s3n"):
        raise UsageError(f"{named} = {uri!r}: tables can be in a directory or in a bucket of S3 (s3://bucket/prefix)")


def require_same_place(uri: str) -> None:
    """Raise `UsageError` if Spark and delta-rs would take the uri of a warehouse for different places.

    delta-rs decodes percent escapes, also in a path, turns a backslash into a slash, and reads no tab and no newline.
    So it could open the log of another warehouse.
    """
    found = _AMBIGUOUS.search(uri)
    if found is not None:
        raise UsageError(
            f"a warehouse cannot be at {uri!r}: delta-rs takes {found[0]!r} in its name for something else; give it a "
            "name without percent escapes, backslashes and control characters"
        )


def absolute_uri(text: str, named: str, directory: Path) -> Uri:
    """Return an absolute path or a URI.

    `named` is the setting's name in messages. A relative path is relative to `directory`.
    """
    file = _FILE.fullmatch(text)
    if file is not None:
        return Uri(_path_of_file_uri(file["host"] or "", file["path"], named))
    if (one_slash := _ONE_SLASH.match(text)) is not None:
        # The rest is not shown: it may hold a secret.
        raise UsageError(f"{named} begins with {one_slash[0]}: a uri has two slashes there, {one_slash[0]}/")
    if _SCHEME.match(text):
        if _holds_a_secret(text):
            raise UsageError(
                f"{named}: the uri (not shown) holds a user, a password or a signature: remove them and everything "
                "after ? or #; give credentials in the environment or the AWS profile"
            )
        if not text.partition("://")[2].strip("/"):
            raise UsageError(f"{named} = {text!r} names no bucket; is a variable empty?")
        return Uri(text.rstrip("/"))
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{named} = {text!r}: this user has no home directory; give an absolute path") from error
    return Uri(str((directory / path).absolute()))


def _path_of_file_uri(host: str, path: str, named: str) -> str:
    """Decode as `coldlog.archive.open_archive` does; here the path may also hold `?` and `#`."""
    if host.lower() not in ("", "localhost") or not path.startswith("/"):
        raise UsageError(
            f"{named}: a file uri (not shown) must name an absolute path on this machine and no other host: give "
            "file:///directory, or the path alone"
        )
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"{named}: the percent escapes of the uri are not UTF-8; give the path alone") from error
    return str(Path("/" + decoded.lstrip("/")))


def _holds_a_secret(uri: str) -> bool:
    """A secret key may hold a `/`, which ends the authority before the `@`. A colon shows it: a bucket has no port."""
    scheme, _, rest = uri.partition("://")
    authority = _decoded(rest.partition("/")[0])
    is_user = "@" in authority or (scheme.lower().startswith("s3") and ":" in authority)
    return is_user or "X-Amz-" in uri or _URI_WITH_QUERY.match(uri) is not None


def _decoded(text: str) -> str:
    """Remove percent escapes until none are left, also escaped ones."""
    while (decoded := unquote(text)) != text:
        text = decoded
    return text
