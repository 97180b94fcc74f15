"""Test numbers and texts that Kafka defines: error codes (org.apache.kafka.common.protocol.Errors) and uuids."""

from __future__ import annotations

import pytest

from coldlog.errors import UsageError
from coldlog.model.fetch import FetchErrorCode
from coldlog.model.ids import uuid_bytes, uuid_text


def test_error_codes_of_fetches_are_kafkas() -> None:
    assert {code.name: code.value for code in FetchErrorCode} == {
        "UNKNOWN_SERVER_ERROR": -1,
        "OFFSET_OUT_OF_RANGE": 1,
        "CORRUPT_MESSAGE": 2,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "REQUEST_TIMED_OUT": 7,
        "THROTTLING_QUOTA_EXCEEDED": 89,
    }


@pytest.mark.parametrize("size", [0, 15, 17])
def test_uuid_has_sixteen_bytes(size: int) -> None:
    with pytest.raises(UsageError, match=f"a uuid has 16 bytes, not {size}"):
        uuid_text(bytes(size))
    assert uuid_bytes(uuid_text(bytes(range(16)))) == bytes(range(16))
