"""Decide which topics and consumer groups a client may see and use.

A name of the users' file is that of one topic or group; with `*` at its end it stands for all that begin so. What a
client may not use is answered as what does not exist, so that neither names nor counts are seen.
"""

from __future__ import annotations

from dataclasses import dataclass

_ANY_END = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names that are allowed, and beginnings of names. The empty beginning allows all."""

    literal: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.literal or name.startswith(self.prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What one client may see: topics by the names that clients use, and groups."""

    topics: Names
    groups: Names


ALL_RIGHTS = Rights(topics=Names(prefixes=("",)), groups=Names(prefixes=("",)))
NO_RIGHTS = Rights(topics=Names(), groups=Names())


def parse_names(given: object) -> Names:
    """Read a list of the users' file. Raise `ValueError` if it is none."""
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise ValueError(f"expected a list of names, found {given!r}")
    return Names(
        literal=frozenset(name for name in given if not name.endswith(_ANY_END)),
        prefixes=tuple(name.removesuffix(_ANY_END) for name in given if name.endswith(_ANY_END)),
    )
