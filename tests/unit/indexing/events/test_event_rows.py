"""Test how records of the metadata topic become rows: tombstones, message versions, and records that cannot be read."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from builders.metadata_events import PARTITION, SEGMENT, SEGMENT_ID, SNAPSHOT, UPDATE
from coldlog.formats.kafka.remote_log.remote_log_events import UnknownTags
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event, encode_event
from coldlog.indexing.events.event_rows import event_row
from coldlog.model.ids import uuid_bytes

BYTES_KEY = uuid_bytes(PARTITION.topic_id) + struct.pack(">i", 3) + uuid_bytes(SEGMENT_ID.segment_id) + b"\x02"
TEXT_KEY = f"{PARTITION.topic_id}:orders:3:199:-1".encode()
EPOCH_7 = struct.pack(">i", 7)


@pytest.mark.parametrize(
    ("key", "topic", "segment_id"),
    [
        (BYTES_KEY, None, SEGMENT_ID.segment_id),
        (TEXT_KEY, "orders", None),
        (TEXT_KEY + b":UPDATE", "orders", None),
    ],
)
def test_record_without_a_value_is_a_tombstone_of_its_key(
    key: bytes, topic: str | None, segment_id: str | None
) -> None:
    assert event_row(None, key) == {
        "event_kind": "tombstone",
        "topic": topic,
        "topic_id": PARTITION.topic_id,
        "partition": 3,
        "segment_id": segment_id,
    }


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"orders",
        BYTES_KEY[:-1],
        BYTES_KEY + b"\x00",
        BYTES_KEY[:-1] + b"\x04",
        TEXT_KEY + b":DELETE",
        TEXT_KEY.replace(b":3:", b":three:"),
        TEXT_KEY[1:],
        TEXT_KEY.replace(b"orders", b"\xff"),
    ],
)
def test_tombstone_with_an_unknown_key_is_unreadable_with_a_reason(key: bytes) -> None:
    row = event_row(None, key)
    assert row["event_kind"] == "unreadable"
    assert "an unknown key" in str(row["problem"])


def test_record_without_value_and_key_is_unreadable() -> None:
    assert event_row(None)["problem"] == "the record has no value and no key"


def test_snapshot_event_is_kept_with_the_problem_that_it_names_no_partition() -> None:
    row = event_row(encode_event(SNAPSHOT))
    assert (row["event_kind"], row["segment_id"]) == ("segment_snapshot", SNAPSHOT.segment_id)
    assert "names no partition" in str(row["problem"])


def test_events_of_an_upgraded_cluster_are_read_side_by_side() -> None:
    """Before KIP-1058, with KIP-1058, and with message version 1, in which tag 0 of an update is a different field."""
    before, since = replace(SEGMENT, txn_index_empty=None), SEGMENT
    new = replace(SEGMENT, version=1, unknown_tags=UnknownTags(event=((1, EPOCH_7),)))
    rows = [event_row(encode_event(event)) for event in (before, since, new)]
    assert [row["txn_index_empty"] for row in rows] == [None, True, True]
    assert [{**row, "txn_index_empty": None, "value": None} for row in rows] == [
        {**rows[0], "value": None} for _ in rows
    ]
    tags = UnknownTags(event=((0, EPOCH_7), (1, struct.pack(">q", 199))))
    updates = [UPDATE, replace(UPDATE, version=1), replace(UPDATE, version=1, unknown_tags=tags)]
    rows = [event_row(encode_event(event)) for event in updates]
    assert [row["end_offset"] for row in rows] == [None, None, 199]
    assert "txn_index_empty" not in rows[2]
    unknown = replace(UPDATE, version=1, unknown_tags=UnknownTags(event=((1, struct.pack(">q", -1)),)))
    assert event_row(encode_event(unknown))["end_offset"] is None


def test_tags_of_version_1_have_no_meaning_in_version_0() -> None:
    later = replace(UPDATE, unknown_tags=UnknownTags(event=((1, b"another"),)))
    assert event_row(encode_event(later))["end_offset"] is None
    assert decode_event(encode_event(later)) == later


def test_update_of_version_1_is_read_as_in_the_draft_of_the_kip() -> None:
    update = replace(UPDATE, version=1, unknown_tags=UnknownTags(event=((0, EPOCH_7), (1, struct.pack(">q", 199)))))
    written = (
        b"\x01\x01\x01"  # frame version, api key, message version
        + b"\x07orders" + b"\xfb" * 16 + struct.pack(">i", 3) + b"\x00" + bytes(range(16)) + b"\x00"
        + struct.pack(">iq", 1, UPDATE.event_timestamp_ms) + b"\x00\x01"
        + b"\x02" + b"\x00\x04\x00\x00\x00\x07" + b"\x01\x08" + struct.pack(">q", 199)
    )  # fmt: skip
    assert decode_event(written) == update
    assert encode_event(update) == written


@pytest.mark.parametrize("version", [2, 127])
def test_later_message_version_is_unreadable_with_a_reason(version: int) -> None:
    value = bytearray(encode_event(SEGMENT))
    value[2] = version
    row = event_row(bytes(value))
    assert (row["event_kind"], row["value"]) == ("unreadable", bytes(value))
    assert "version is not supported" in str(row["problem"])
