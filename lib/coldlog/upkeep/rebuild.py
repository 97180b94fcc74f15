"""Move the tables of a damaged warehouse aside, so that the pipeline makes them anew from the archive.

Three kinds of tables:

- those that the archive cannot give (`ONLY_HERE`) stay where they are, after every byte of them was read;
- the history of runs and of late answers (`HISTORY`) stays if it is sound;
- all others, and the manifests, are moved to the new place `<warehouse>.replaced-<time>` (`table_places`).

No content is lost, and `segments` is moved last: a run that is killed before that leaves a warehouse that jobs refuse,
and the next start of the job moves the rest.

Refused with `UsageError`, before anything is moved: an archive without segments, a damaged table of `ONLY_HERE` unless
it is given up by name, and a warehouse that is neither in a folder nor in a bucket.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.runtime.console import counted
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import layout_opener
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE
from coldlog.tables.delta.files.table_files import list_table_files
from coldlog.tables.delta.manifest import MANIFEST_FOLDER
from coldlog.tables.delta.table_storage import keeping_tables_open
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.upkeep.table_places import TablePlace, open_table_place
from coldlog.upkeep.verify import verify_tables

ONLY_HERE = (
    LOG_START_OFFSETS,
    SEGMENT_EVENTS,
    REPLAY_POSITIONS,
    COMMITTED_OFFSETS,
    TIER_PARTITIONS,
    TIER_QUOTAS,
    TIER_SCHEDULE,
)
"""Tables that the archive cannot give; events only as long as the metadata topic still has them."""
HISTORY = (JOB_RUNS, LIST_OFFSETS_EXPIRATIONS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--give-up`."""
    parser.add_argument(
        "--give-up",
        action="append",
        default=[],
        choices=[table.name for table in ONLY_HERE],
        metavar="TABLE",
        help="move this table aside as well, although the archive cannot give its rows; can be repeated",
    )


def set_tables_aside(job: PlainJob) -> None:
    """Move all tables aside that the archive gives; say which ones stay."""
    uri, place = job.settings.warehouse_uri, _open_place(job)
    # The job goes on with the pipeline, which must not find the moved tables open.
    with keeping_tables_open(), writing(uri) as lease, job.console.stage("set aside") as stage:
        if not layout_opener(job.settings)().list_partition_directories().directories:
            raise UsageError("the archive has no segments to make tables from; correct archive.uri")
        kept = [each.name for each in ONLY_HERE if _is_kept(place, uri, each, job.arguments.give_up)]
        kept += [each.name for each in HISTORY if place.has(each.name) and _find_damage(place, uri, each) is None]
        # Jobs refuse a warehouse with `segments` but without the others, so it goes last.
        tables = (*ALL_TABLES, DAMAGE_REPORTS, DIRECTORY_DIGESTS, METADATA_POSITIONS, *ONLY_HERE)
        others = [each.name for each in tables if each is not SEGMENTS]
        names = [*dict.fromkeys([*others, MANIFEST_FOLDER, SEGMENTS.name])]
        moved = [name for name in names if name not in kept and place.has(name)]
        moment = f"{datetime.now(tz=UTC):%Y%m%dT%H%M%S.%fZ}"
        aside = place.move(moved, moment, lambda: None if lease is None else lease.confirm())
        stage.add(f"{counted(len(moved), 'folder')} moved to {aside}")
        stage.add(f"{counted(len(kept), 'table')} kept" + (f" ({', '.join(kept)})" if kept else ""))
    job.console.note("if this run stops from here on, run_pipeline continues it")


def _open_place(job: PlainJob) -> TablePlace:
    if job.settings.warehouse.as_of is not None:
        raise UsageError("rebuild_tables cannot rebuild a past version of the tables; unset warehouse.as_of")
    place = open_table_place(job.settings.warehouse_uri)
    if not place.is_there:
        raise UsageError(f"there is no warehouse {job.settings.warehouse_uri}; correct warehouse.uri")
    return place


def _is_kept(place: TablePlace, uri: str, table: TableDefinition, given_up: Sequence[str]) -> bool:
    if table.name in given_up or not place.has(table.name):
        return False
    damage = _find_damage(place, uri, table)
    if damage is not None:
        raise UsageError(
            f"{damage.partition(';')[0]}; the archive cannot give the rows of {table.name}: {table.comment}; restore "
            f"its files from a copy, or add --give-up {table.name}"
        )
    return True


def _find_damage(place: TablePlace, uri: str, table: TableDefinition) -> str | None:
    try:
        list_table_files(place.location(table.name), table, ())
    except RetriableError:
        raise
    except ColdlogError as damage:
        return str(damage)
    return next(iter(verify_tables(uri, [table]).damages), None)
