"""Test the reader over tables in a bucket: the same answers, and few small requests for each question."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.reader import OffsetReader
from coldlog.tables.delta.files.parquet_files import FetchedFile, read_file
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import ACCESS_KEY, SECRET_KEY, Bucket
from worlds.golden_warehouse import golden_queries, is_true_answer


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


def test_neighbouring_columns_are_one_request_and_no_thread_of_arrow_reads(
    warehouse_uri: str, golden_uri: str, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's threads that still hold an object of Python abort a process that ends meanwhile."""
    readers = set[int]()
    read = FetchedFile.read

    def watched(file: FetchedFile, length: int = -1) -> bytes:
        readers.add(threading.get_ident())
        return read(file, length)

    monkeypatch.setattr(FetchedFile, "read", watched)
    place = Path(golden_uri) / "segments"
    name = Path(DeltaTable(place).file_uris()[0]).name
    with pq.ParquetFile(place / name) as stored:
        schema, expected = stored.schema_arrow, stored.read()
    s3_proxy.forget()
    assert read_file(f"{warehouse_uri}/segments", name, schema.names).equals(expected)
    ranges = [each.range for each in s3_proxy.gets]
    size = (place / name).stat().st_size
    assert sum(not each.endswith(f"-{size - 1}") for each in ranges) == 1, f"the rest is the footer: {ranges}"
    s3_proxy.forget()
    ends = [schema.names[0], schema.names[-1]]
    assert read_file(f"{warehouse_uri}/segments", name, ends).equals(expected.select(ends))
    assert readers == {threading.get_ident()}


def test_missing_credentials_are_reported(warehouse_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY"), OffsetReader(warehouse_uri):
        pass


@pytest.mark.parametrize(
    ("status", "where", "error", "words"),
    [
        (403, "listings", UsageError, "no permission to list .* allow s3:ListBucket"),
        (403, ".json", UsageError, "segments cannot be read: .* it needs permission s3:GetObject"),
        (403, ".parquet", UsageError, r"parquet of s3://.* cannot be read: .* it needs permission s3:GetObject"),
        (404, ".parquet", ColdlogError, "parquet is damaged: it is missing, but the table's newest version needs it"),
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


def _flipped_footer(content: bytes) -> bytes:
    return content[:-40] + bytes([content[-40] ^ 4]) + content[-39:]


@pytest.mark.parametrize("table", ["segments", "time_index"])
def test_damaged_table_is_reported_and_not_to_be_asked_again(
    golden_uri: str, bucket: Bucket, s3_access: S3Proxy, table: str
) -> None:
    """A store has no checksums beside the files: the manifest holds the tables."""
    bucket.put_directory(Path(golden_uri), "warehouse")
    asked = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in golden_queries()]
    place = Path(golden_uri) / table
    data = place / Path(DeltaTable(place).file_uris()[0]).name
    commit = max(each for each in (place / "_delta_log").glob("*.json") if '"add"' in each.read_text())
    damages: dict[str, Callable[[bytes], bytes | None]] = {
        "removed": lambda content: None,
        "emptied": lambda content: b"",
        "cut": lambda content: content[: len(content) // 2],
        "flipped": _flipped_footer,
    }
    for path in (data, commit):
        key = f"warehouse/{path.relative_to(golden_uri).as_posix()}"
        for name, damage in damages.items():
            damaged = damage(path.read_bytes())
            if path == commit and name == "flipped":
                continue  # may hit what nobody reads
            if damaged is None:
                bucket.delete(key)
            else:
                bucket.put({key: damaged})
            with pytest.raises(ColdlogError, match=f"/warehouse/{table}.* is damaged: ") as refused:
                _ask(bucket.uri("warehouse"), asked)
            assert not isinstance(refused.value, RetriableError)
            bucket.put({key: path.read_bytes()})
    _ask(bucket.uri("warehouse"), asked)


def _ask(uri: str, asked: list[tuple[str, int, int]]) -> None:
    with OffsetReader(uri) as reader:
        reader.list_offsets(asked)
