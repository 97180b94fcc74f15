"""Test that a DataFrame and a fetcher keep the read quota together if they share it."""

from __future__ import annotations

import shutil
from pathlib import Path

from coldlog.fetcher import open_fetcher
from coldlog.model.fetch import FetchedRecords
from coldlog.records.source.datasource import register_source
from coldlog.records.source.options import source_defaults
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.delta.warehouse import Warehouse
from read_quotas import shared_quota, taken_bytes


def test_dataframe_and_fetches_keep_the_quota_that_they_share(
    golden: Warehouse, golden_archive: Path, tmp_path: Path
) -> None:
    uri = shutil.copytree(golden.uri, tmp_path / "warehouse")
    total = sum(log.stat().st_size for log in golden_archive.glob("*/orders-0-*/*.log"))
    settings = [f"warehouse.uri={uri}", f"archive.uri={golden_archive}", *shared_quota(total // 2)]
    register_source(golden.spark, source_defaults(load_settings("local", settings)))
    count = golden.spark.read.format("coldlog").option("assign", '{"orders":[0]}').load().count()
    assert taken_bytes(uri) >= total
    with open_fetcher(settings) as fetcher:
        offset, fetched = 0, 0
        while isinstance(answer := fetcher.fetch_records("orders", 0, offset, max_bytes=50_000), FetchedRecords):
            if answer.next_offset == offset:
                break
            offset, fetched = answer.next_offset, fetched + len(answer.records)
    assert fetched == count > 3_000
    assert taken_bytes(uri) >= 2 * total
