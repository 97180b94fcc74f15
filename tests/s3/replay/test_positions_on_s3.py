"""Test that lag over tables in a bucket is computed without a request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from coldlog.archive.open_archive import open_archive
from coldlog.model.states import IsolationLevel
from coldlog.replay.positions import PartitionPositions
from fetching import open_fetcher_over
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket


def test_lag_over_tables_in_a_bucket_needs_no_request(
    golden_archive: Path, golden_bucket: Bucket, s3_access: S3Proxy
) -> None:
    opener = partial(open_archive, str(golden_archive), "local_tiered_storage")
    with open_fetcher_over(golden_bucket.uri("warehouse"), opener) as fetcher:
        found = {level: PartitionPositions(fetcher, level) for level in IsolationLevel}
        for positions in found.values():
            positions.assign([("payments", 1), ("orders", 0)])
            positions.refresh()
        s3_access.forget()
        read = fetcher.rows_read
        for positions in found.values():
            positions.seek("payments", 1, 0)
            positions.seek("orders", 0, 3_000)
        assert {level: each.current_lag("payments", 1) for level, each in found.items()} == {
            IsolationLevel.READ_UNCOMMITTED: 918,
            IsolationLevel.READ_COMMITTED: 875,
        }
        assert [each.current_lag("orders", 0) for each in found.values()] == [953, 953]
        assert s3_access.requests == []
        # The tables have not changed: their logs are listed, and no row is read again.
        found[IsolationLevel.READ_COMMITTED].refresh()
        assert s3_access.requests != []
        assert fetcher.rows_read == read
