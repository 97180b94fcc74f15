"""drawn_examples: how many examples tests try that choose it themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from hypothesis import settings

_Item = TypeVar("_Item")
SAMPLED = 20
"""`make check` draws so many examples for each other test; `make test` draws 100."""


def examples(count: int) -> settings:
    """Draw `count` examples; in `make check` a fifth of them."""
    return settings(max_examples=max(2, count // 5) if is_sampled() else count, deadline=None)


def sampled(items: Iterable[_Item]) -> Iterator[_Item]:
    """Iterate over the items; in `make check` over each fifth one."""
    return islice(items, 0, None, 5 if is_sampled() else 1)


def is_sampled() -> bool:
    """Whether this is `make check`."""
    return settings().max_examples == SAMPLED
