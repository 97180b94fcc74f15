"""Test the reader over tables in a bucket: the same answers, and few small requests for each question."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coldlog.errors import RetriableError, UsageError
from coldlog.reader import OffsetReader
from golden_warehouse import golden_queries, is_true_answer
from s3_proxy import Fault, S3Proxy
from s3_server import ACCESS_KEY, SECRET_KEY, Bucket


@pytest.fixture
def warehouse_uri(golden_bucket: Bucket, s3_access: S3Proxy) -> str:
    """A copy of the sample's warehouse in a bucket."""
    s3_access.forget()
    return golden_bucket.uri("warehouse")


def test_answers_are_those_of_the_broker_and_each_question_reads_only_what_it_needs(
    warehouse_uri: str, golden_uri: str, s3_proxy: S3Proxy
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
        files = [path for path in Path(golden_uri).rglob("*.parquet") if "_delta_log" not in path.parts]
        sizes = {path.name: path.stat().st_size for path in files}
        asked = [each for each in s3_proxy.requests if each.is_get and each.path.rpartition("/")[2] in sizes]
        assert asked
        assert all(each.range for each in asked), "files of tables are read in ranges"
        s3_proxy.forget()
        reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
        assert s3_proxy.requests == [], "what was read is kept"


def test_missing_credentials_are_reported(warehouse_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY"), OffsetReader(warehouse_uri):
        pass


@pytest.mark.parametrize(
    ("status", "where", "error", "words"),
    [
        (403, "listings", UsageError, "no permission to list .* allow s3:ListBucket"),
        (403, ".json", RetriableError, "segments cannot be read .* s3:GetObject"),
        (403, ".parquet", UsageError, r"parquet of s3://.* cannot be read: .* it needs permission s3:GetObject"),
        (404, ".parquet", RetriableError, "parquet of s3://.* is missing; .* if the table was vacuumed meanwhile"),
    ],
)
def test_refused_access_to_tables_is_reported_with_advice_and_without_the_text_of_s3(
    warehouse_uri: str, s3_proxy: S3Proxy, status: int, where: str, error: type[Exception], words: str
) -> None:
    s3_proxy.strikes = lambda request: (
        request.is_listing if where == "listings" else request.is_get and request.path.endswith(where)
    )
    s3_proxy.faults = [Fault(status=status, code="AccessDenied" if status == 403 else "NoSuchKey")] * 500
    with pytest.raises(error, match=words) as refused, OffsetReader(warehouse_uri) as reader:
        reader.offset_for_timestamp("orders", 0, 0)
    text = repr(refused.getrepr(chain=True))
    assert ACCESS_KEY not in text
    assert SECRET_KEY not in text
