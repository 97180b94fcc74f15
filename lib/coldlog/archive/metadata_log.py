"""List the files of a copy of the metadata topic.

A broker stores `__remote_log_metadata` like any topic: a directory `__remote_log_metadata-<partition>` with log
segments `<base offset, 20 digits>.log`. The directories may be in a broker's data directory, beside those of other
topics, or a copy in a store. Names that are not a directory of the topic are ignored. `metadata_log_reader` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore

METADATA_TOPIC = "__remote_log_metadata"
_LOG_NAME = re.compile(r"(?P<base_offset>[0-9]{20})\.log")
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log segment of a partition."""

    base_offset: int
    info: ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition:
    """The log segments of one partition of the metadata topic, by base offset."""

    partition: int
    files: tuple[LogFile, ...]


def list_metadata_partitions(store: ObjectStore, topic: str = METADATA_TOPIC) -> list[MetadataPartition]:
    """The partitions of `topic` below the store's root, by number."""
    name = re.compile(re.escape(topic) + r"-(?P<partition>0|[1-9][0-9]{0,8})")
    found = [(matched, directory) for directory in store.list_directories("") if (matched := name.fullmatch(directory))]
    partitions = [
        MetadataPartition(partition=int(matched["partition"]), files=list_log_files(store, directory))
        for matched, directory in found
    ]
    return sorted(partitions, key=lambda partition: partition.partition)


def list_log_files(store: ObjectStore, directory: str) -> tuple[LogFile, ...]:
    """The log segments in a directory of a partition, by base offset."""
    files = []
    for info in store.iter_objects(directory):
        matched = _LOG_NAME.fullmatch(info.name.rpartition("/")[2])
        if matched and int(matched["base_offset"]) <= _INT64_MAX:
            files.append(LogFile(base_offset=int(matched["base_offset"]), info=info))
    return tuple(sorted(files, key=lambda file: file.base_offset))
