"""Test that a layout, a codec, a setting and a job need no more than CONTRIBUTING.md says: one file, one list."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from builders.segment_builder import Batch, Record, build_batch_around, build_records
from changed_library import changed_library

LAYOUT = '''
"""Read a folder per partition, of the logs alone."""

from coldlog.archive.layouts.layout import (
    DirectoryListing, ListedSegment, PartitionDirectory, SegmentFileKind, SegmentListing, SegmentObject
)


class PlainLogs:
    name, is_mirror = "plain_logs", False

    def __init__(self, store):
        self.store, self.uri = store, store.uri

    def list_partition_directories(self):
        names = sorted(self.store.list_directories(""))
        directories = [PartitionDirectory(name=name, topic=name, topic_id="", partition=0) for name in names]
        return DirectoryListing(directories=tuple(directories), unrecognized=())

    def list_segments(self, directory):
        segments = [
            ListedSegment(
                topic=directory.topic, topic_id="", partition=0, start_offset=int(log.name.split("/")[1]),
                segment_id="", missing_kinds=(),
                objects=(SegmentObject(
                    kind=SegmentFileKind.LOG, name=log.name, size_bytes=log.size_bytes, modified_ms=log.modified_ms
                ),),
            )
            for log in self.store.iter_objects(directory.name)
        ]
        return SegmentListing(segments=tuple(segments), unrecognized=())


def open_layout(store, options):
    return PlainLogs(store)
'''
CODEC = """

def _inverted(section: memoryview, output: memoryview) -> int:
    if len(section) > len(output):
        raise _LimitError
    output[: len(section)] = bytes(byte ^ 0xFF for byte in section)
    return len(section)
"""
JOB = '''"""Count the segments of the archive.

Nothing is written.
"""

import sys

from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(lambda job: None, job_argument_parser(__file__, __doc__)))
'''


def test_a_layout_needs_a_module_and_a_line_of_the_layout_names(tmp_path: Path) -> None:
    (tmp_path / "archive" / "orders").mkdir(parents=True)
    (tmp_path / "archive" / "orders" / "7").write_bytes(b"log")
    with changed_library(
        tmp_path / "copy",
        files={"lib/coldlog/archive/layouts/plain_logs.py": LAYOUT},
        lines=[
            (
                "lib/coldlog/model/layout_names.py",
                '    AIVEN = "aiven", "aiven_layout"',
                '    PLAIN_LOGS = "plain_logs", "plain_logs"',
            )
        ],
    ):
        sources: Any = import_module("coldlog.runtime.settings_sources")
        opening: Any = import_module("coldlog.runtime.open_layout")
        values = [f"archive.uri={tmp_path}/archive", "archive.layout=plain_logs"]
        layout = opening.layout_opener(sources.load_settings(assignments=values))()
        (directory,) = layout.list_partition_directories().directories
        (segment,) = layout.list_segments(directory).segments
        (allowed,) = [key.allowed for key in sources.list_setting_keys() if key.key == "archive.layout"]
    assert (segment.topic, segment.start_offset, segment.listed_log_size_bytes) == ("orders", 7, 3)
    assert allowed == "local_tiered_storage or log_directories or aiven or plain_logs"


def test_a_codec_needs_a_function_and_a_line_of_the_decoders(tmp_path: Path) -> None:
    batch = Batch(base_offset=3, records=(Record(timestamp_ms=5, key=b"k", value=b"v"),))
    log = bytearray(build_batch_around(batch, bytes(byte ^ 0xFF for byte in b"".join(build_records(batch)))))
    log[22] |= 5
    log[17:21] = import_module("crc32c").crc32c(bytes(log[21:])).to_bytes(4, "big")
    module = "lib/coldlog/formats/kafka/compression.py"
    function = (module, "    return int(cramjam.snappy.decompress_raw_into(block, output)) if claimed else 0", CODEC)
    line = (module, '    4: ("zstd", _zstd),', '    5: ("inverted", _inverted),')
    with changed_library(tmp_path, lines=[function, line]):
        batches: Any = import_module("coldlog.formats.kafka.record_batch")
        records: Any = import_module("coldlog.formats.kafka.records")
        sections: Any = import_module("coldlog.formats.kafka.sections")
        limits: Any = import_module("coldlog.formats.limits")
        summaries: Any = import_module("coldlog.index.segment_summary")
        window = memoryview(bytes(log))
        headers = batches.read_batch_headers(
            window, position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 20
        ).headers
        reader = sections.SectionReader(limits=limits.DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=99))
        decoded = [(each.offset, each.timestamp_ms, each.key, each.value) for each in
                   records.iter_records(window, headers, 0, reader)]  # fmt: skip
        names = summaries.CODEC_NAMES
    assert decoded == [(3, 5, b"k", b"v")]
    assert names[5] == "inverted"


def test_a_setting_needs_a_field(tmp_path: Path) -> None:
    with changed_library(
        tmp_path,
        lines=[
            (
                "lib/coldlog/runtime/settings.py",
                '    """What is listed, and when a listing is accepted."""',
                '\n    patience_ms: int = setting(250, "time limit for patience", at_least=1)\n',
            )
        ],
    ):
        sources: Any = import_module("coldlog.runtime.settings_sources")
        (key,) = [key for key in sources.list_setting_keys() if key.key == "scan.patience_ms"]
        settings = sources.load_settings(assignments=["scan.patience_ms=7"])
        assert dict(settings.items())["scan.patience_ms"] == 7
        with pytest.raises(import_module("coldlog.errors").UsageError, match="expected a whole number from 1"):
            sources.load_settings(assignments=["scan.patience_ms=0"])
    assert (key.default, key.meaning) == (250, "time limit for patience")
    assert settings.scan.patience_ms == 7


def test_a_job_needs_a_program(tmp_path: Path) -> None:
    with changed_library(tmp_path, files={"jobs/count_segments.py": JOB}) as copy:
        submit: Any = import_module("coldlog.launch.submit")
        assert submit.get_job("count_segments", copy / "jobs") == copy / "jobs" / "count_segments.py"
        assert "  count_segments        Count the segments of the archive.\n" in submit.usage(copy / "jobs")
