"""A small warehouse for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tables.small_warehouse import write_small_warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """A warehouse with the partitions orders-0, which has holes, and orders-1; no run has published payments-0 yet."""
    return write_small_warehouse(tmp_path)
