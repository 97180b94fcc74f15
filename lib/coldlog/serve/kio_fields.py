"""Read from kio's classes what their fields are."""

from __future__ import annotations

from typing import Any, get_args

from kio.static.constants import EntityType


def nested_class(hint: Any) -> Any:
    """Return the class of a field's entity, or of its entries; None if these are no messages of their own."""
    if getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    return next((found for part in get_args(hint) if (found := nested_class(part)) is not None), None)


def is_array(hint: Any) -> bool:
    """Whether a field has entries; it may also be null."""
    return any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint)))


def is_nullable(hint: Any) -> bool:
    """Whether a field may be null."""
    return type(None) in get_args(hint)
