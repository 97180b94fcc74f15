"""Let jobs treat the small tables of tests as large ones, which Spark reads and changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coldlog.tables.delta import warehouse


@contextmanager
def as_large_tables() -> Iterator[None]:
    """Within the block, no table is small enough to be read or changed without Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warehouse, "_FEW_ROWS", -1)
        yield
