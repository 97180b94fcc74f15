"""Golden archives of real clusters, one per version of Kafka, and what each cluster answered.

tests/golden/clusters/README.md says how they were made. Topics are named after their version, so that all archives can
be merged; metadata partitions are numbered anew for that.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldlog.archive.metadata_log import METADATA_TOPIC

CLUSTERS = Path(__file__).parents[2] / "golden" / "clusters"
CLUSTER_NAMES = tuple(sorted(each.name for each in CLUSTERS.iterdir() if each.is_dir()))
VERSIONS = tuple(each for each in CLUSTER_NAMES if "-to-" not in each)
"""The clusters of one version; the others were upgraded."""
Line = dict[str, Any]


def true_lines(cluster: str, name: str) -> list[Line]:
    """The lines of a file of the cluster's truth."""
    with gzip.open(CLUSTERS / cluster / "truth" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def iter_true_records(cluster: str) -> Iterator[tuple[tuple[str, int], list[Line]]]:
    """Of every partition, the archived records that a consumer got."""
    for partition in true_lines(cluster, "partitions"):
        place = partition["topic"], partition["partition"]
        yield place, [each for each in true_lines(cluster, f"records/{place[0]}-{place[1]}") if each["arch"]]


def shape_of(topic: str) -> str:
    """What the topic shows: its name without the version."""
    return re.split(r"-\d", topic)[0]


def copy_all_archives(archive: Path) -> None:
    """All archives as one."""
    for cluster in CLUSTER_NAMES:
        shutil.copytree(CLUSTERS / cluster / "archive", archive, dirs_exist_ok=True)


def metadata_partitions() -> dict[tuple[str, int], int]:
    """Of each cluster and partition of its metadata topic, the number in the merged topic."""
    found = [(cluster, each) for cluster in CLUSTER_NAMES for each in (CLUSTERS / cluster / "rlmm").iterdir()]
    places = sorted((cluster, int(each.name.rpartition("-")[2])) for cluster, each in found)
    return {place: number for number, place in enumerate(places)}


def copy_all_metadata_logs(metadata: Path) -> None:
    """The metadata topics of all clusters as one."""
    for (cluster, partition), number in metadata_partitions().items():
        copied = CLUSTERS / cluster / "rlmm" / f"{METADATA_TOPIC}-{partition}"
        shutil.copytree(copied, metadata / f"{METADATA_TOPIC}-{number}")


def follower_entries(cluster: str) -> int:
    """How many entries of offset indexes name the end of a fetched set and not of the batch that they point to."""
    return sum(map(_follower_entries_of, (CLUSTERS / cluster / "archive").glob("*/*/*.index")))


def _follower_entries_of(index: Path) -> int:
    log, base_offset = index.with_suffix(".log").read_bytes(), int(index.name[:20])
    last_offsets, position = {}, 0
    while position < len(log):
        first_offset, size_bytes = struct.unpack_from(">qi", log, position)
        last_offsets[position] = first_offset + struct.unpack_from(">i", log, position + 23)[0]
        position += 12 + size_bytes
    entries = struct.iter_unpack(">ii", index.read_bytes())
    return sum(last_offsets[at] != base_offset + relative_offset for relative_offset, at in entries)
