"""object_names: which names may be asked of a store?

A name is a relative key, `/`-separated: no empty part, no `.` or `..`, no NUL. Every store refuses the others in the
same words, so that no name leads out of an archive and a memory store stands for a local one. Names of a file system
that are not UTF-8 hold surrogates (PEP 383); `printable_name` makes them fit for a table or a message.
"""

from __future__ import annotations

from coldlog.errors import UsageError


def require_object_name(name: str) -> None:
    """Refuses what cannot be the name of an object."""
    if not is_object_name(name):
        raise UsageError(
            f"not a name inside an archive: {name!r}; a relative name without empty, . or .. parts is expected"
        )


def is_object_name(name: str) -> bool:
    """It can be the name of an object."""
    has_odd_part = any(part in ("", ".", "..") for part in name.split("/"))
    return "\0" not in name and not has_odd_part and _can_be_encoded(name)


def require_prefix(prefix: str) -> None:
    """Refuses what cannot be the name of a directory; the root is the empty text."""
    if prefix:
        require_object_name(prefix)


def require_range(position: int, length: int) -> None:
    """Refuses a range that begins before an object or has a negative length."""
    if position < 0 or length < 0:
        raise UsageError(f"not a range of bytes: position {position}, length {length}; neither may be negative")


def printable_name(name: str) -> str:
    """The name as text that UTF-8 can hold: bytes that were not UTF-8 become escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _can_be_encoded(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
