"""conftest of tests/endpoint/apart: an archive with gaps, served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoint.conftest import Endpoint, serving


@pytest.fixture(scope="session")
def strict(written_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The archive of `written_topics`, where gaps are errors: of topic `bad` the offsets 50 to 99."""
    archive = Path(written_uri).parent / "archive"
    with serving(tmp_path_factory.mktemp("strict") / "notes", written_uri, archive) as endpoint:
        yield endpoint
