"""Find the name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most alike, in whatever case it is written; None if none is alike."""
    from difflib import get_close_matches

    names = list(known)
    if near := get_close_matches(name, names, n=1):
        return near[0]
    in_lower_case = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), in_lower_case, n=1)
    return in_lower_case[near[0]] if near else None
