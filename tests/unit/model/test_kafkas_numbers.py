"""Test numbers and texts that Kafka defines: error codes (org.apache.kafka.common.protocol.Errors), limits, uuids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldlog.errors import UsageError
from coldlog.model.fetch import FetchErrorCode, FetchRequest
from coldlog.model.ids import uuid_bytes, uuid_text
from coldlog.model.list_offsets import ErrorCode
from coldlog.runtime.settings_sources import list_setting_keys


def test_error_codes_of_fetches_are_kafkas() -> None:
    assert {code.name: code.value for code in FetchErrorCode} == {
        "UNKNOWN_SERVER_ERROR": -1,
        "OFFSET_OUT_OF_RANGE": 1,
        "CORRUPT_MESSAGE": 2,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TIMED_OUT": 7,
        "THROTTLING_QUOTA_EXCEEDED": 89,
    }


def test_error_codes_of_list_offsets_are_kafkas_and_other_ones_are_higher() -> None:
    codes = {code.name: code.value for code in ErrorCode}
    names = ("LOCAL_REQUIRED", "OPEN_TRANSACTION", "STALE_INDEX", "NOT_DECODED", "ARCHIVE_INCOMPLETE")
    own = {name: codes.pop(name) for name in names}
    assert codes == {
        "NONE": 0,
        "CORRUPT_MESSAGE": 2,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TIMED_OUT": 7,
        "TOPIC_AUTHORIZATION_FAILED": 29,
        "UNSUPPORTED_VERSION": 35,
        "INVALID_REQUEST": 42,
        "KAFKA_STORAGE_ERROR": 56,
        "FENCED_LEADER_EPOCH": 74,
        "UNKNOWN_LEADER_EPOCH": 75,
    }
    assert list(own.values()) == [10_001, 10_002, 10_003, 10_004, 10_005], "stored in tables: they must not change"


def test_settings_with_kafkas_names_have_kafkas_defaults() -> None:
    """RemoteLogManagerConfig of 4.3.1; the offset readers as KIP-1075 says, which Kafka has not released."""
    defaults = {each.key: each.default for each in list_setting_keys()}
    kafkas = {
        "remote.list.offsets.request.timeout.ms": 30_000,
        "remote.log.manager.copier.thread.pool.size": 10,
        "remote.log.manager.copy.max.bytes.per.second": 2**63 - 1,
        "remote.log.manager.copy.quota.window.num": 11,
        "remote.log.manager.copy.quota.window.size.seconds": 1,
        "remote.log.manager.expiration.thread.pool.size": 10,
        "remote.log.manager.fetch.max.bytes.per.second": 2**63 - 1,
        "remote.log.manager.fetch.quota.window.num": 11,
        "remote.log.manager.fetch.quota.window.size.seconds": 1,
        "remote.log.offset.read.max.pending.tasks": 100,
        "remote.log.offset.reader.threads": 5,
        "remote.log.reader.max.pending.tasks": 100,
        "remote.log.reader.threads": 10,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 50,
    }
    assert {key: default for key, default in defaults.items() if key.startswith(("remote.", "rlmm."))} == kafkas


def test_fetch_of_nothing_at_once_is_a_request_and_negative_limits_are_refused() -> None:
    request = FetchRequest(topic="orders", partition=0, offset=0, max_bytes=0, timeout_ms=0)
    assert (request.max_bytes, request.timeout_ms, request.is_committed) == (0, 0, False)
    for name in ("max_bytes", "timeout_ms"):
        with pytest.raises(UsageError, match=f"{name} of a fetch is -1"):
            replace(request, **{name: -1})  # type: ignore[arg-type]  # a number of the request


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ["orders"]), ("topic", None), ("topic", "\ud800"),
        ("partition", True), ("partition", 2**31), ("partition", -(2**31) - 1), ("partition", None),
        ("offset", 2**63), ("offset", -(2**63) - 1), ("offset", False),
        ("max_bytes", 2**63), ("timeout_ms", 2**63 - 1), ("timeout_ms", 2**31),
    ],
)  # fmt: skip
def test_fetch_of_what_no_pool_can_work_on_is_refused(name: str, value: object) -> None:
    arguments = {"topic": "orders", "partition": 0, "offset": 0, name: value}
    with pytest.raises(UsageError, match=name):
        FetchRequest(**arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("size", [0, 15, 17])
def test_uuid_has_sixteen_bytes(size: int) -> None:
    with pytest.raises(UsageError, match=f"a uuid has 16 bytes, not {size}"):
        uuid_text(bytes(size))
    assert uuid_bytes(uuid_text(bytes(range(16)))) == bytes(range(16))
