"""Test that options have the meaning of Spark's Kafka source, and that what it refuses is refused."""

from __future__ import annotations

import pytest

from coldlog.errors import UsageError
from coldlog.model.states import IsolationLevel
from coldlog.records.source.options import EARLIEST, LATEST, Limit, Strategy, read_columns, read_options

PLACES = {"warehouse.uri": "/w", "archive.uri": "/a"}


def test_defaults_are_those_of_a_batch_query_of_the_kafka_source() -> None:
    options = read_options({**PLACES, "subscribe": " orders , payments,,orders"})
    assert options.subscription.topics == ("orders", "payments")
    assert (options.start, options.end) == (Limit(offset=EARLIEST), Limit(offset=LATEST))
    assert options.fails_on_data_loss
    assert not options.starts_late
    assert options.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (options.warehouse_uri, options.settings.archive_uri) == ("/w", "/a")


def test_range_may_be_empty_and_tables_as_of_a_past_time_are_read_on_request() -> None:
    same = '{"a":{"0":5}}'
    options = read_options({**PLACES, "subscribe": "a", "startingoffsets": same, "endingoffsets": same})
    assert options.start == options.end == Limit(offsets={("a", 0): 5})
    assert options.as_of_ms is None
    past = read_options({**PLACES, "subscribe": "a", "warehouse.as_of": "1970-01-01T00:00:07Z"})
    assert past.as_of_ms == 7_000


def test_headers_are_a_column_on_request() -> None:
    assert read_columns({"includeheaders": "TRUE"})[-1] == "headers"
    assert read_columns({"columns": "offset, VALUE,timestamptype,headers"}) == (
        "offset", "value", "timestampType", "headers",
    )  # fmt: skip


def test_milliseconds_of_timestamps_are_a_column_on_request() -> None:
    assert read_columns({"includetimestampms": "true"})[-3:] == ("timestamp", "timestampMs", "timestampType")
    assert read_columns({"columns": "TIMESTAMPMS"}) == ("timestampMs",)


def test_read_quota_is_an_option_and_other_settings_of_fetches_are_not() -> None:
    asked = {**PLACES, "subscribe": "a"}
    limited = {"remote.log.manager.fetch.max.bytes.per.second": "1 MiB", "fetch.share_quota": "true"}
    fetch = read_options(asked | limited).settings.fetch
    assert (fetch.max_bytes_per_second, fetch.share_quota) == (1 << 20, True)
    with pytest.raises(UsageError, match="fetch.timeout_ms"):
        read_options({**asked, "fetch.timeout_ms": "1"})


def test_timestamps_that_spark_cannot_hold_are_null_on_request_only() -> None:
    asked = {**PLACES, "subscribe": "a"}
    assert not read_options(asked).nulls_timestamps
    assert read_options({**asked, "timestampbeyondrange": "NULL"}).nulls_timestamps


def test_one_timestamp_wins_over_timestamps_by_partition_and_these_over_offsets() -> None:
    given = {**PLACES, "subscribe": "a", "startingoffsets": '{"a":{"0":5,"1":-2}}'}
    assert read_options(given).start == Limit(offsets={("a", 0): 5, ("a", 1): -2})
    given["startingoffsetsbytimestamp"] = '{"a":{"0":1700000000000}}'
    assert read_options(given).start == Limit(timestamps_ms={("a", 0): 1_700_000_000_000})
    given["startingtimestamp"] = " 1800000000000 "
    assert read_options(given).start == Limit(timestamp_ms=1_800_000_000_000)
    assert read_options({**PLACES, "subscribe": "a", "endingoffsets": '{"a":{"0":-1}}'}).end == Limit(
        offsets={("a", 0): -1}
    )


def test_options_for_brokers_and_consumers_are_ignored() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL", "fetchoffset.numretries": "7"}
    options = read_options({**PLACES, **given, "assign": '{"a":[0,2]}', "kafka.isolation.level": "READ_COMMITTED"})
    assert options.subscription.strategy is Strategy.ASSIGN
    assert options.subscription.partitions == {("a", 0), ("a", 2)}
    assert options.isolation_level is IsolationLevel.READ_COMMITTED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of the options assign, subscribe and subscribePattern must be given"),
        ({"subscribe": "a", "subscribepattern": "b"}, "only one of the options assign, subscribe"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "only one of the options assign, subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a", "timestampbeyondrange": "zero"}, "timestampBeyondRange = zero: expected error or null"),
        ({"subscribepattern": "("}, "not a regular expression"),
        ({"subscribepattern": ""}, "is empty"),
        ({"assign": "a"}, r'assign = a: expected e.g. {"topicA":\[0,1\]'),
        ({"assign": '{"a":{"0":1}}'}, "assign = .*expected e.g."),
        ({"assign": '{"a":[-1]}'}, "assign = .*expected e.g."),
        ({"subscribe": "a", "startingoffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"subscribe": "a", "startingoffsets": '{"a":{"0":-1}}'}, "startingOffsets cannot be latest"),
        ({"subscribe": "a", "endingoffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"subscribe": "a", "endingoffsets": '{"a":{"0":-2}}'}, "endingOffsets cannot be earliest"),
        ({"subscribe": "a", "startingoffsets": "soon"}, "startingOffsets = soon: expected e.g. earliest, latest or"),
        ({"subscribe": "a", "startingoffsets": '{"a":{"0":-3}}'}, "startingOffsets = .*expected e.g."),
        ({"subscribe": "a", "startingoffsets": '{"a":{"x":3}}'}, "startingOffsets = .*expected e.g."),
        ({"subscribe": "a", "startingoffsets": '{"a":{"0":true}}'}, "startingOffsets = .*expected e.g."),
        ({"subscribe": "a", "startingoffsetsbytimestamp": '{"a":{"0":-1}}'}, "startingOffsetsByTimestamp = .*expected"),
        ({"subscribe": "a", "endingoffsets": '{"a":{"0":' + "9" * 5000 + "}}"}, "endingOffsets = .*expected e.g."),
        ({"subscribe": "a", "endingtimestamp": "noon"}, "endingTimestamp = noon: expected epoch milliseconds"),
        (
            {"subscribe": "a", "startingoffsets": '{"a":{"0":9}}', "endingoffsets": '{"a":{"0":8}}'},
            "starting offset 9 of a-0 is greater than the ending offset 8",
        ),
        (
            {"subscribe": "a", "startingoffsets": '{"a":{"0":9}}', "endingoffsets": '{"a":{"1":10}}'},
            "name different partitions",
        ),
        ({"subscribe": "a", "startingoffsetsbytimestampstrategy": "maybe"}, "expected error or latest"),
        ({"subscribe": "a", "minpartitions": "0"}, "minPartitions = 0: expected a whole number from 1"),
        ({"subscribe": "a", "failondataloss": "no"}, "failOnDataLoss = no: expected true or false"),
        ({"subscribe": "a", "kafka.isolation.level": "serializable"}, "expected read_uncommitted or read_committed"),
        ({"subscribe": "a", "columns": "offset,size"}, "columns = offset,size: expected some of key, value"),
        ({"subscribe": "a", "columns": "offset,offset"}, "each once"),
        ({"subscirbe": "a", "subscribe": "a"}, "unknown option subscirbe, did you mean subscribe.: docs"),
        ({"subscribe": "a", "startingoffset": "earliest"}, "startingoffset, did you mean startingoffsets"),
        ({"subscribe": "a", "xyzzy": "1"}, "unknown option xyzzy: docs"),
        ({"subscribe": "a", "archive.layuot": "x"}, "unknown setting archive.layuot"),
        ({"subscribe": "a", "archive.layout": "x"}, "archive.layout = 'x' .option.: expected"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options({**PLACES, **given})


@pytest.mark.parametrize("missing", ["warehouse.uri", "archive.uri"])
def test_missing_uri_is_refused_with_the_name_of_its_option(missing: str) -> None:
    with pytest.raises(UsageError, match=f"option {missing} is missing"):
        read_options({"subscribe": "a", **{key: value for key, value in PLACES.items() if key != missing}})
