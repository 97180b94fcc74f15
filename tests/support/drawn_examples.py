"""drawn_examples: how many examples does a test draw that says their number itself?"""

from __future__ import annotations

from hypothesis import settings

SAMPLED = 20
"""Examples of each other test if a sample is enough (`make check`), instead of 100."""


def examples(count: int) -> settings:
    """Draw so many, or a fifth of them if a sample is enough."""
    is_sampled = settings().max_examples == SAMPLED
    return settings(max_examples=max(2, count // 5) if is_sampled else count, deadline=None)
