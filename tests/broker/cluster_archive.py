"""Make the golden archives of tests/golden/clusters anew, one per version of Kafka.

    python -m broker.cluster_archive DIRECTORY VERSION...    with lib, tests and the repository in PYTHONPATH

starts a cluster of each version, plays, asks the cluster for the truth, and replaces DIRECTORY/VERSION. A
VERSION such as 3.9.0-to-4.3.1 is a rolling upgrade.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from broker.cluster_play import cluster_play, compile_programs
from broker.kafka_cluster import KafkaCluster, running_cluster
from servers.kafka_jars import find_tool, run_tool

ASKED_TIMESTAMPS = 90
"""How many timestamps are asked per partition, about."""


def main(directory: Path, versions: list[str]) -> None:
    """Replace the archives of these versions."""
    for version in versions:
        with tempfile.TemporaryDirectory(prefix="coldlog-cluster-") as scratch:
            made = make_archive(version, Path(scratch))
            shutil.rmtree(directory / version, ignore_errors=True)
            shutil.copytree(made, directory / version)


def make_archive(version: str, scratch: Path) -> Path:
    """A folder with archive, metadata topic and truth of a new cluster."""
    class_path, made = compile_programs(scratch / "classes"), scratch / "made"
    older, _, newer = version.partition("-to-")
    with running_cluster(scratch / "cluster", older) as cluster:
        with cluster_play(cluster, version, class_path) as play:
            if newer:
                play.play_upgrade(newer)
            else:
                play.play()
        collect(cluster, class_path, made)
    return made


def collect(cluster: KafkaCluster, class_path: str, made: Path) -> None:
    """Ask a cluster that has settled, and copy its tier and its metadata topic."""
    tier = cluster.tier / "kafka-tiered-storage"
    program = [find_tool("java"), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path]
    servers = ",".join(cluster.bootstrap_servers)
    run_tool([*program, "ClusterTruth", servers, str(tier), str(made / "truth"), str(ASKED_TIMESTAMPS)])
    cluster.copy_metadata_logs(made / "rlmm")
    shutil.copytree(tier, made / "archive" / tier.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
