"""The place of the pages about a validation."""

from __future__ import annotations

import pytest

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import load_settings
from coldlog.upkeep.data_docs import data_docs_place


def test_pages_are_written_only_to_folders_and_buckets() -> None:
    settings = load_settings("local", ["warehouse.uri=w", "validation.data_docs_uri=hdfs://there/pages"])
    with pytest.raises(UsageError, match="neither a folder nor s3://bucket/prefix"):
        data_docs_place(settings)
