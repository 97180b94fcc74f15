"""Let jobs treat the small tables and archives of tests as large ones, which Spark reads and changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coldlog.indexing.builds import build_tasks
from coldlog.indexing.scan import listing
from coldlog.tables.delta import warehouse_reads


@contextmanager
def as_large_tables() -> Iterator[None]:
    """Within the block, no table and no archive is small enough to be read, listed, built or changed without Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warehouse_reads, "FEW_ROWS", 0)
        patch.setattr(listing, "_MOST_DIRECTORIES_HERE", -1)
        patch.setattr(build_tasks, "MOST_SEGMENTS_HERE", 0)
        yield
