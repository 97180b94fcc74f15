"""List what is wrong with the archive, the worst first, and what to do about it.

    coldlog problems
    coldlog problems orders --severity error --json

These are discrepancies, objects in quarantine, events of the metadata topic that are lost or unreadable, directories
that could not be listed, and gaps, as of the last run. Damage that readers have found since is listed too; the view
coldlog.archive_problems (SQL) lists all but that damage.
Exit codes: 0, 1 if a problem is an error, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coldlog.command.shared.listings import add_listing_arguments, prepare, wanted, write_listing
from coldlog.command.shared.outputs import Shown
from coldlog.errors import Reason, UsageError
from coldlog.tables.table_rows import Rows, read_table

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

_SEGMENT = ("topic", "partition", "start_offset", "segment_id")
_NAMES = ("severity", *_SEGMENT, "kind", "expected", "found", "advice", "first_seen_ms")
_SEVERITIES = ("error", "warning", "info")
_RETRY = "run with build.retry_quarantined=true"
_ADVICE = {
    "object_unreadable": f"permit reading the object, or bring it back from cold storage; then {_RETRY}",
    "decryption_key_missing": (
        "name the file of this key in COLDLOG_DECRYPTION_KEYS; the next run reads the segment again"
    ),
    "decryption_failed": f"name the right key, or restore the object; then {_RETRY}",
}
_RESTORE = f"restore the object; the next run reads a rewritten log again; for other objects {_RETRY}"
_RESTORE_EVENTS = "restore the object; the next run reads it again"
_REPORTED = (
    "run run_pipeline: it reads the segment completely, and shows what is lost; restore the object to lose nothing"
)
_OTHER_KINDS = ("offset_gap", "not_listed", "event_unreadable", "events_lost", "segment_not_found")
_AS_PROMISED = "bytes as their format promises"
_READABLE = {"quarantined", "pending"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--severity", choices=_SEVERITIES, help="only problems as grave as this, or worse")
    parser.add_argument("--kind", help="only problems of this kind")
    add_listing_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the problems."""
    _check_kind(arguments.kind)
    settings, values = prepare(arguments), wanted(arguments)
    problems = [*_discrepancies(settings, values), *_gaps(settings, values), *_of_events(settings, values)]
    known = {tuple(row[name] for name in _SEGMENT) for row in problems if row["kind"] == "size_differs"}
    problems += _quarantined(settings, values, known)
    problems += _reported(settings, values)
    if not values:
        problems += _unlisted(settings)
    most = _SEVERITIES.index(arguments.severity or "info")
    listed = [
        row for row in problems if _SEVERITIES.index(row["severity"]) <= most and arguments.kind in (None, row["kind"])
    ]
    listed.sort(key=_rank)
    shown: Shown = {name.replace("_", " "): _cell(name) for name in _NAMES[:-1] if name != "segment_id"}
    write_listing(arguments, settings, _NAMES, listed, shown, is_known=bool(problems))
    return int(any(row["severity"] == "error" for row in listed))


def _check_kind(kind: str | None) -> None:
    from coldlog.tables.definitions.discrepancies import DiscrepancyKind

    kinds = sorted({*(each.value for each in DiscrepancyKind), *(each.value for each in Reason), *_OTHER_KINDS})
    if kind is not None and kind not in kinds:
        from difflib import get_close_matches

        near = get_close_matches(kind, kinds, n=1, cutoff=0.0)[0]
        raise UsageError(f"--kind {kind}: there is no such kind; did you mean {near}?")


def _cell(name: str) -> Any:
    return lambda row: row[name]


def _rank(row: dict[str, Any]) -> tuple[object, ...]:
    place = ("" if row[name] is None else row[name] for name in ("topic", "segment_id", "kind"))
    numbers = (-1 if row[name] is None else row[name] for name in ("partition", "start_offset"))
    return _SEVERITIES.index(row["severity"]), *place, *numbers


def _discrepancies(settings: Settings, values: dict[str, object]) -> Rows:
    from coldlog.tables.definitions.discrepancies import DISCREPANCIES

    return read_table(settings, DISCREPANCIES, _NAMES, values)


def _reported(settings: Settings, values: dict[str, object]) -> Rows:
    """Return the damage that readers have found in what is served now."""
    from coldlog.tables.damage_reports import read_damage_reports
    from coldlog.tables.definitions.segments import SEGMENTS

    if settings.warehouse.as_of is not None:
        return []
    reports = [
        row
        for row in read_damage_reports(settings.warehouse_uri)
        if all(row[name] == value for name, value in values.items())
    ]
    served_build = (*_SEGMENT, "served_build_number")
    served = {
        tuple(segment[name] for name in served_build)
        for topic in {row["topic"] for row in reports}
        for segment in read_table(settings, SEGMENTS, served_build, {"topic": topic})
    }
    return [
        {
            **row,
            "severity": "error",
            "kind": row["reason"],
            "expected": row["expected"] or _AS_PROMISED,
            "found": _found_text(row),
            "advice": _REPORTED,
            "first_seen_ms": row["reported_ms"],
        }
        for row in reports
        if (*(row[name] for name in _SEGMENT), row["build_number"]) in served
    ]


def _found_text(row: dict[str, Any]) -> str:
    where = "" if row["position"] < 0 else f" at byte {row['position']}"
    found = f": {row['found']}" if row["found"] else ""
    return f"{row['message']} in {row['object_name']}{where}{found}"


def _quarantined(settings: Settings, values: dict[str, object], known: set[tuple[object, ...]]) -> Rows:
    """Return what is in quarantine and still in the archive; a log of a wrong size is a discrepancy already."""
    from coldlog.tables.definitions.quarantine import QUARANTINE
    from coldlog.tables.definitions.segments import SEGMENTS

    columns = (*_SEGMENT, "reason", "message", "object_name", "position", "expected", "found", "first_seen_ms")
    quarantined = read_table(settings, QUARANTINE, columns, values)
    if not quarantined:
        return []
    segments = read_table(settings, SEGMENTS, (*_SEGMENT, "index_status"), values)
    present = {tuple(row[name] for name in _SEGMENT) for row in segments if row["index_status"] in _READABLE}
    rows: Rows = []
    for row in quarantined:
        segment = tuple(row[name] for name in _SEGMENT)
        is_of_events = row["topic"] == "__remote_log_metadata"
        if not is_of_events and segment not in present:
            continue
        if segment in known and row["reason"] == "log_size_differs":
            continue
        rows.append(
            {
                **row,
                "severity": "error",
                "kind": row["reason"],
                "expected": row["expected"] or _AS_PROMISED,
                "found": _found_text(row),
                "advice": _RESTORE_EVENTS if is_of_events else _ADVICE.get(row["reason"], _RESTORE),
            }
        )
    return rows


def _gaps(settings: Settings, values: dict[str, object]) -> Rows:
    """Return the offsets between served segments that no segment serves."""
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
    from coldlog.tables.definitions.segments import SEGMENTS

    partitions = read_table(settings, PARTITION_METADATA, ("topic", "partition", "topic_id", "gap_count"), values)
    rows: Rows = []
    for partition in (each for each in partitions if each["gap_count"]):
        place = {name: partition[name] for name in ("topic", "partition", "topic_id")}
        columns = ("served_from_offset", "served_to_offset", "segment_id")
        served = [
            row for row in read_table(settings, SEGMENTS, columns, place) if row["served_from_offset"] is not None
        ]
        end: int | None = None
        for row in sorted(served, key=lambda row: int(row["served_from_offset"])):
            if end is not None and end < row["served_from_offset"]:
                rows.append(_gap(place, end, row))
            end = max(end or 0, row["served_to_offset"] + 1)
    return rows


def _gap(place: dict[str, Any], start: int, following: dict[str, Any]) -> dict[str, Any]:
    return {
        **place,
        "severity": "error",
        "start_offset": start,
        "segment_id": None,
        "kind": "offset_gap",
        "expected": f"offsets {start} to {following['served_from_offset'] - 1}",
        "found": f"none before segment {following['segment_id']}",
        "advice": "restore the segments that had them or copy them again, unless they were compacted away",
        "first_seen_ms": None,
    }


def _of_events(settings: Settings, values: dict[str, object]) -> Rows:
    from coldlog.command.shared.event_problems import event_problems

    return [row for row in event_problems(settings) if all(row[name] == value for name, value in values.items())]


def _unlisted(settings: Settings) -> Rows:
    from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS

    nowhere = dict.fromkeys((*_SEGMENT, "first_seen_ms"))
    return [
        {
            **nowhere,
            "severity": "error",
            "kind": "not_listed",
            "expected": "a partition directory that can be listed",
            "found": f"{row['name']}: {row['why']}",
            "advice": "allow listing it, or restore the parts that cannot be read; the next run lists it again",
        }
        for row in read_table(settings, UNRECOGNIZED_OBJECTS, ("name", "why"))
        if str(row["why"]).startswith("directory: cannot be listed:")
    ]
