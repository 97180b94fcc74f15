"""One question at a time over tables in a bucket: the same answers, and few and narrow requests for each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.reader import OffsetReader
from coldlog.tables.warehouse import Warehouse
from golden_warehouse import golden_queries, is_true_answer
from s3_proxy import S3Proxy
from s3_server import Bucket


@pytest.fixture
def warehouse_uri(golden: Warehouse, bucket: Bucket) -> str:
    """A copy of the sample's warehouse in a bucket."""
    bucket.put_directory(Path(golden.uri), "warehouse")
    return bucket.uri("warehouse")


def test_answers_are_those_of_the_broker_and_each_reads_only_what_it_needs(
    warehouse_uri: str, golden: Warehouse, s3_proxy: S3Proxy
) -> None:
    s3_proxy.forget()
    with OffsetReader(warehouse_uri) as reader:
        queries = random.Random(11).sample(golden_queries(), 400)
        answers = reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
        wrong = [
            (query, answer)
            for query, answer in zip(queries, answers, strict=True)
            if not is_true_answer(query, answer, broker_compatible=False)
        ]
        assert wrong == []
        files = [path for path in Path(golden.uri).rglob("*.parquet") if "_delta_log" not in path.parts]
        sizes = {path.name: path.stat().st_size for path in files}
        asked = [each for each in s3_proxy.requests if each.is_get and each.path.rpartition("/")[2] in sizes]
        assert asked
        assert all(each.range for each in asked), "files of tables are read in ranges"
        s3_proxy.forget()
        reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
        assert s3_proxy.requests == [], "what was read is kept"


def test_credentials_that_are_missing_are_told(warehouse_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY"), OffsetReader(warehouse_uri):
        pass
