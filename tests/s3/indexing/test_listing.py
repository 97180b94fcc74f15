"""Test that a task lists several directories of a bucket at the same time, and loses none."""

from __future__ import annotations

from coldlog.archive.open_archive import open_archive
from coldlog.indexing.scan.listing import list_directories
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket

KINDS = ("index", "leader_epoch_checkpoint", "log", "snapshot", "timeindex")


def test_directories_are_listed_several_at_once(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    places = [f"kafka-tiered-storage/wide-{partition}-{'A' * 22}" for partition in range(12)]
    names = [f"{number:020}-{number:021}A" for number in range(4)]
    bucket.put({f"a/{place}/{name}.{kind}": b"" for place in places for name in names for kind in KINDS})
    layout = open_archive(bucket.uri("a"), "local_tiered_storage")
    directories = layout.list_partition_directories().directories
    s3_proxy.forget()
    s3_proxy.delay_s = 0.2
    listed = [row for batch in list_directories(layout, directories) for row in batch.to_pylist()]
    assert s3_proxy.most_under_way > 4
    assert sorted((row["partition"], row["start_offset"]) for row in listed) == [
        (partition, number) for partition in range(12) for number in range(4)
    ]
    assert {(row["state"], len(row["objects"])) for row in listed} == {("COPY_SEGMENT_FINISHED", len(KINDS))}
