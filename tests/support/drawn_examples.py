"""drawn_examples: the number of examples, for tests that choose it themselves."""

from __future__ import annotations

from hypothesis import settings

SAMPLED = 20
"""`make check` draws so many examples for each other test; `make test` draws 100."""


def examples(count: int) -> settings:
    """Draw `count` examples; in `make check` a fifth of them."""
    is_sampled = settings().max_examples == SAMPLED
    return settings(max_examples=max(2, count // 5) if is_sampled else count, deadline=None)
