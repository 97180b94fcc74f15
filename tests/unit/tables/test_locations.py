"""Test that every reader takes the uri of a warehouse for the same place, or refuses it."""

from __future__ import annotations

import pytest

from coldlog.errors import UsageError
from coldlog.reader import OffsetReader
from coldlog.tables.delta.locations import local_folder, plain_location, spark_uri, table_location


@pytest.mark.parametrize(
    ("uri", "folder", "of_spark"),
    [
        ("/data/w", "/data/w", "/data/w"),
        ("/data/w/", "/data/w", "/data/w"),
        ("/data/50% a?b#c", "/data/50% a?b#c", "/data/50% a?b#c"),
        ("file:/data/w/", "/data/w", "file:///data/w"),
        ("file:///data/a%20b", "/data/a b", "file:///data/a b"),
        ("file:///data/%C3%BC%23", "/data/\u00fc#", "file:///data/\u00fc#"),
    ],
)
def test_a_folder_has_one_name_for_all_readers(uri: str, folder: str, of_spark: str) -> None:
    assert local_folder(uri) in (folder, f"{folder}/")
    assert (table_location(uri, "segments"), spark_uri(uri)) == (f"{folder}/segments", of_spark)
    assert plain_location(spark_uri(uri)) == folder, "naming it twice changes nothing"


@pytest.mark.parametrize(
    "uri",
    [
        "/data/a%20b", "/data/p%2Fq", "/data/back\\slash", "/data/tab\there", "/data/new\nline", "/data/del\x7f",
        "file:///data/a%2520b", "file:///data/a%5Cb", "file:///data/a%0Ab", "s3://bucket/a%20b",
    ],
)  # fmt: skip
def test_a_name_that_delta_rs_takes_for_another_place_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="a warehouse cannot be at .*without percent escapes, backslashes and control"):
        OffsetReader(uri)
