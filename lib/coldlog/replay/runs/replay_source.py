"""Read what a replay reads and writes from its options, and refuse what cannot be done before Spark starts.

Refused with `UsageError`: a warehouse without tables, topics, partitions and offsets that the data source refuses, an
output that cannot be written, and a folder that already has something, if the replay begins.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.records.source.options import SourceOptions, read_options, source_defaults
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.runtime.installation import keep_compiled_kernels
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings import Settings
from coldlog.tables.delta.locations import folder_of_spark, why_unwritable
from coldlog.tables.delta.log_check import LOG_FOLDER

_SOURCE_OPTIONS = {
    "topics": "subscribe",
    "topic_pattern": "subscribePattern",
    "assign": "assign",
    "starting_offsets": "startingOffsets",
    "ending_offsets": "endingOffsets",
    "starting_timestamp": "startingTimestamp",
    "ending_timestamp": "endingTimestamp",
    "fail_on_data_loss": "failOnDataLoss",
    "isolation_level": "kafka.isolation.level",
}


def refuse_early(job: PlainJob) -> None:
    """Raise `UsageError` for what can be known without Spark; write nothing."""
    # What is imported compiles its kernels; Spark's start chooses their place for later.
    keep_compiled_kernels()
    # Imported here, because help needs none of the packages that read the tables.
    from coldlog.records.source.spans import find_spans, require_ends

    settings, arguments = job.settings, job.arguments
    check_output_options(arguments)
    source = replayed_source(settings, arguments)
    before = None if arguments.name is None else ReplayStates.of_warehouse(settings.warehouse_uri).read(arguments.name)
    # A run that was killed is repeated from its plan, whatever the options say.
    if before is None or not before.is_planned:
        require_ends(find_spans(replace(source, starts_late=True)))
    for option, place in (("--output", arguments.output), ("--output-table", arguments.output_table)):
        folder = None if place is None else folder_of_spark(absolute_place(place), settings)
        if folder is not None:
            _require_output(option, folder, is_first=before is None)


def replayed_source(settings: Settings, arguments: argparse.Namespace) -> SourceOptions:
    """Return the options of the reading, from the arguments and the settings."""
    given = {name: getattr(arguments, argument) for argument, name in _SOURCE_OPTIONS.items()}
    options = {name.lower(): value for name, value in given.items() if value is not None}
    return read_options({**source_defaults(settings), **options})


def check_output_options(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` if an option of --output-topic is missing, or given without it."""
    has_topic_options = arguments.bootstrap_servers is not None or arguments.output_partition is not None
    if arguments.output_topic is None and has_topic_options:
        raise UsageError("--bootstrap-servers and --output-partition are only for --output-topic")
    if arguments.output_topic is not None and arguments.bootstrap_servers is None:
        raise UsageError("--output-topic needs --bootstrap-servers")


def absolute_place(place: str) -> str:
    """Make a path absolute, so that it is the same wherever the next run is started."""
    return place if ":" in place.partition("/")[0] else str(Path(place).absolute())


def _require_output(option: str, folder: str, *, is_first: bool) -> None:
    why = why_unwritable(folder)
    if why is not None:
        raise UsageError(f"{option} {folder} cannot be written: {why}; correct the path")
    if is_first and option == "--output-table" and os.path.isdir(os.path.join(folder, LOG_FOLDER)):
        raise UsageError(f"{folder} is a table already, and this replay did not write it; choose another output")
    if is_first and option == "--output" and _has_files(folder):
        raise UsageError(f"{folder} is not empty, and this replay did not write it; choose another output")


def _has_files(folder: str) -> bool:
    """Whether a file is below the folder that Spark would list: names that begin with _ or . are hidden."""
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        if any(not name.startswith(("_", ".")) for name in files):
            return True
    return False
