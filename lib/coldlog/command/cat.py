r"""Print archived records, partition by partition, in the order of their offsets.

    coldlog cat orders -p 0 -o 2592 -c 10
    coldlog cat orders --from 2023-11-15T10:00Z --to 2023-11-15T11:00Z -f '%t %p %o %T %k %s\n'
    coldlog cat orders -p 0 -o s@1700042400000 --json --grep refund

Format letters, as kcat's: %t topic, %p partition, %o offset, %T timestamp (epoch ms), %k key, %s value, %K and %S their
lengths (-1: NULL), %h headers (name=value, ...), %% a percent sign; and \n \t \r \\ \xHH. Without -f or --json a record
is its value and a new line. A time is an offset: --from begins at the first record at or after it, --to ends before it.
With fetch.log_directory, a broker's log directory goes on where the archive ends. If standard error is a terminal and
standard output is not, it shows how far the command has come.
Exit codes: 0, 1 if records cannot be read (after those before them), 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from coldlog.command.shared.outputs import standard_output
from coldlog.command.shared.questions import asked_partitions, known_partitions, open_reader
from coldlog.command.shared.reading_progress import ReadingProgress, terminal_progress
from coldlog.command.shared.settings_options import add_settings_options, read_settings
from coldlog.errors import ColdlogError, UsageError
from coldlog.runtime.installation import keep_compiled_kernels
from coldlog.runtime.spark.without_pandas import keep_pandas_out
from coldlog.tables.known_topics import find_unknown

if TYPE_CHECKING:
    from coldlog.fetcher import RecordFetcher
    from coldlog.model.fetch import FetchedRecord, FetchedRecords, PartitionEnds
    from coldlog.reader import OffsetReader

Write = Callable[[str, int, "FetchedRecord"], bytes]
_FORMAT = re.compile(rb"%(.)|\\(x[0-9A-Fa-f]{2}|.)|%$|\\$", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\", b"0": b"\0"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument(
        "-p", "--partition", type=int, action="append", metavar="N", help="this partition (default: all); repeatable"
    )
    parser.add_argument("-o", "--offset", default="beginning", help="an offset, beginning, -N (the last N), or s@TIME")
    parser.add_argument("--from", dest="since", metavar="TIME", help="as -o s@TIME")
    parser.add_argument("--to", dest="until", metavar="TIME", help="end before the first record at or after this time")
    parser.add_argument("-c", "--count", type=int, metavar="N", help="at most so many records of each partition")
    parser.add_argument("--grep", metavar="REGEX", help="only records whose key or value matches")
    written = parser.add_mutually_exclusive_group()
    written.add_argument("-f", "--format", default="%s\\n", help="how a record is written (default: %%s\\n)")
    written.add_argument("--json", action="store_true", help="one JSON object per record")
    parser.add_argument(
        "--isolation-level",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed skips aborted records and stops at open transactions (default: %(default)s)",
    )
    add_settings_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    asked = _asked(arguments)
    settings = read_settings(arguments)
    asked = replace(asked, archive=f"archive.uri is {settings.archive.uri} ({settings.origin('archive.uri')})")
    keep_compiled_kernels()
    keep_pandas_out()
    from coldlog.fetcher import RecordFetcher
    from coldlog.lookups.lookup_settings import lookup_options
    from coldlog.records.fetch.opened_source import open_source
    from coldlog.records.local_log import open_log_directory
    from coldlog.runtime.open_layout import advising_archive
    from coldlog.tiering.read_pace import paced_opener

    output = standard_output().buffer
    with (
        advising_archive(settings),
        closing(terminal_progress()) as progress,
        open_reader(settings, lookup_options(settings, paced_opener)) as reader,
        RecordFetcher(open_source(settings, is_paced=True, is_whole_log=True)) as fetcher,
    ):
        tier = open_log_directory(settings)
        later = [] if tier is None else [number for topic, number in tier.partitions() if topic == arguments.topic]
        for partition in asked_partitions(arguments) or known_partitions(settings, reader, arguments.topic, later):
            place = (arguments.topic, partition)
            ends = fetcher.partition_ends(*place)
            if ends is None:
                raise find_unknown(settings, *place) or UsageError(f"{place[0]}-{place[1]} is not published yet")
            for record in islice(_matching_records(reader, fetcher, place, ends, asked, progress), arguments.count):
                output.write(asked.write(*place, record))
        output.flush()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What to print of a partition, and how. `begin` is what its number means (time, offset or tail) and the number."""

    begin: tuple[str, int]
    until_ms: int | None
    pattern: re.Pattern[bytes] | None
    isolation_level: str
    write: Write
    archive: str = ""
    """Which archive is read, and which setting says so."""


def _asked(arguments: argparse.Namespace) -> _Asked:
    if arguments.count is not None and arguments.count < 1:
        raise UsageError(f"--count {arguments.count}: expected a whole number from 1")
    if arguments.since is not None and arguments.offset != "beginning":
        raise UsageError("give --offset or --from, not both")
    begin = _time_or_offset(arguments.offset if arguments.since is None else f"s@{arguments.since}")
    until_ms = None if arguments.until is None else _time(arguments.until)
    if until_ms is not None and begin[0] == "time" and begin[1] > until_ms:
        raise UsageError(f"the records end before they begin: --to {arguments.until} is an earlier time")
    return _Asked(
        begin=begin,
        until_ms=until_ms,
        pattern=_pattern(arguments.grep),
        isolation_level=arguments.isolation_level,
        write=_json_of if arguments.json else compiled_format(arguments.format),
    )


def _matching_records(
    reader: OffsetReader,
    fetcher: RecordFetcher,
    place: tuple[str, int],
    ends: PartitionEnds,
    asked: _Asked,
    progress: ReadingProgress,
) -> Iterator[FetchedRecord]:
    first = _offset(reader, fetcher, place, asked.begin, ends)
    where = f"{ends.log_start_offset} to {ends.end_offset - 1}"
    if first > ends.end_offset:
        _note(place, f"has offsets {where}, none from {first} on")
    elif first == ends.end_offset and asked.begin[0] == "time":
        _note(place, f"has no record at or after this time; its offsets are {where}")
    end = ends.end_offset
    if asked.until_ms is not None:
        end = _offset(reader, fetcher, place, ("time", asked.until_ms), ends)
    progress.begin(f"{place[0]}-{place[1]}", first, end)
    for record in _records(fetcher, place, (first, end), asked, progress):
        if asked.pattern is None or _matches(asked.pattern, record):
            yield record
    if first <= end == ends.end_offset:
        _fetch(fetcher, place, end, asked)  # an error if the archive has lost what follows


def _note(place: tuple[str, int], text: str) -> None:
    print(f"coldlog cat: {place[0]}-{place[1]} {text}", file=sys.stderr)


def compiled_format(text: str) -> Write:
    """Return what writes a record by a format of kcat; `UsageError` for an unknown letter."""
    parts: list[bytes | Callable[[str, int, FetchedRecord], bytes]] = []
    source, at = os.fsencode(text), 0
    for found in _FORMAT.finditer(source):
        parts.append(source[at : found.start()])
        at = found.end()
        letter, escape = found[1], found[2]
        if letter == b"%":
            parts.append(b"%")
        elif letter is not None and letter.decode("latin-1") in _LETTERS:
            parts.append(_LETTERS[letter.decode("latin-1")])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:].decode()))
        else:
            raise UsageError(
                f"--format: {os.fsdecode(found[0])!r} is unknown; use %{', %'.join(_LETTERS)}, %%, \\n, \\t, \\r, \\xHH"
            )
    parts.append(source[at:])
    return lambda topic, partition, record: b"".join(
        part if isinstance(part, bytes) else part(topic, partition, record) for part in parts
    )


def _length(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


def _headers(record: FetchedRecord) -> bytes:
    pairs = ((name.encode(), b"NULL" if value is None else value) for name, value in record.headers)
    return b",".join(name + b"=" + value for name, value in pairs)


_LETTERS: dict[str, Write] = {
    "t": lambda topic, partition, record: topic.encode(),
    "p": lambda topic, partition, record: b"%d" % partition,
    "o": lambda topic, partition, record: b"%d" % record.offset,
    "T": lambda topic, partition, record: b"%d" % record.timestamp_ms,
    "k": lambda topic, partition, record: record.key or b"",
    "K": lambda topic, partition, record: _length(record.key),
    "s": lambda topic, partition, record: record.value or b"",
    "S": lambda topic, partition, record: _length(record.value),
    "h": lambda topic, partition, record: _headers(record),
}


def _json_of(topic: str, partition: int, record: FetchedRecord) -> bytes:
    from coldlog.records.record_lines import record_row

    row = {"topic": topic, "partition": partition, **record_row(record)}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    try:
        return None if text is None else re.compile(os.fsencode(text))
    except re.error as wrong:
        raise UsageError(f"--grep {text!r}: not a regular expression: {wrong}") from wrong


def _matches(pattern: re.Pattern[bytes], record: FetchedRecord) -> bool:
    return any(pattern.search(content) for content in (record.key, record.value) if content is not None)


def _time(text: str) -> int:
    from coldlog.runtime.timestamps import timestamp_from_text

    timestamp_ms = timestamp_from_text(text)
    if timestamp_ms < 0:
        raise UsageError(f"not a time: {text}; times before 1970 are not possible")
    return timestamp_ms


def _time_or_offset(text: str) -> tuple[str, int]:
    """Return what the text is (time, offset or tail) and its number."""
    if text.startswith("s@"):
        return "time", _time(text.removeprefix("s@"))
    if text == "beginning":
        return "tail", 2**63
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return ("tail", -int(text)) if text.startswith("-") else ("offset", int(text))
    raise UsageError(f"--offset {text!r}: expected an offset, beginning, -N or s@TIME")


def _offset(
    reader: OffsetReader, fetcher: RecordFetcher, place: tuple[str, int], asked: tuple[str, int], ends: PartitionEnds
) -> int:
    kind, number = asked
    if kind == "offset":
        return number
    if kind == "tail":
        return max(ends.log_start_offset, ends.end_offset - number)
    is_archived = place[1] in reader.partitions(place[0])
    found = reader.offset_for_timestamp(*place, number) if is_archived else None
    if found is not None and found.is_exact is False:
        _note(place, "has lost offsets that may have had an earlier record of this time; coldlog lookup names them")
    found = found or fetcher.find_later_offset(*place, number)
    return ends.end_offset if found is None else found.offset


def _records(
    fetcher: RecordFetcher,
    place: tuple[str, int],
    offsets: tuple[int, int],
    asked: _Asked,
    progress: ReadingProgress,
) -> Iterator[FetchedRecord]:
    """Yield the records from the first offset to before the end; a failed fetch is a `ColdlogError`."""
    offset, end = offsets
    while offset < end:
        answer = _fetch(fetcher, place, offset, asked)
        yield from (record for record in answer.records if record.offset < end)
        if answer.next_offset <= offset:
            return
        offset = answer.next_offset
        progress.reach(min(offset, end))


def _fetch(fetcher: RecordFetcher, place: tuple[str, int], offset: int, asked: _Asked) -> FetchedRecords:
    from coldlog.model.fetch import FetchErrorCode, FetchFailure
    from coldlog.model.states import IsolationLevel

    answer = fetcher.fetch_records(*place, offset, isolation_level=IsolationLevel(asked.isolation_level))
    if not isinstance(answer, FetchFailure):
        return answer
    is_further = answer.resume_offset is not None and answer.resume_offset > offset
    more = f"; -o {answer.resume_offset} continues after it" if is_further else ""
    if answer.error is FetchErrorCode.OFFSET_OUT_OF_RANGE:  # also if it is the archive of another warehouse
        more += f"; {asked.archive}"
    raise ColdlogError(f"{answer}{more}")
