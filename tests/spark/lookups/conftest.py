"""Plan and compile lookups in tests as for users (see `planning`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planning import planned_as_for_users


@pytest.fixture(autouse=True)
def planned_as_lookups_are(request: pytest.FixtureRequest) -> Iterator[None]:
    """Applied to every test with Spark."""
    if "spark" not in request.fixturenames:
        yield
        return
    with planned_as_for_users(request.getfixturevalue("spark")):
        yield
