"""Resolve the jars that the installed Spark needs, those of conf/jars/pom.xml, into a folder.

    python -m coldlog.launch.jars FOLDER

Maven copies them; if it is missing, the Ivy inside Spark resolves them. `environment.py` runs this for a checkout,
`coldlog setup` for an installed package.

Refused with `UsageError`: a folder to copy from that does not have the versions of the pom.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from coldlog.errors import ColdlogError, UsageError
from coldlog.runtime.installation import POM
from coldlog.runtime.spark.spark_versions import SparkSeries, installed_series

MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_PROPERTY = re.compile(r"\$\{([^}]+)\}")
_MAVEN_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}
_IVY_EXCLUDES = (
    "org.scala-lang:scala-library",
    "io.delta:delta-kernel-api",
    "io.delta:delta-kernel-defaults",
    "io.delta:delta-kernel-unitycatalog",
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
)
"""Large packages that Spark has or that are not used. Ivy's exclusions have no wildcard for a single package."""
IVY_GROUPS = ("io.delta_", "org.apache.hadoop_hadoop-aws", "software.amazon.", "org.reactivestreams_")
"""The jars to keep of those that Ivy resolves; Spark has its own versions of the others."""


def resolve_jars(directory: Path) -> None:
    """Fill an empty folder with Maven, or with the Ivy inside Spark if Maven is missing."""
    if maven := shutil.which("mvn"):
        versions = [f"-D{name}={version}" for name, version in installed_series().jar_properties.items()]
        options = ["--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(POM), *versions]
        _run([maven, *options, MAVEN_COPY, f"-DoutputDirectory={directory}"])
    else:
        print("coldlog: no Maven (mvn) found: using the Ivy inside Spark", file=sys.stderr, flush=True)
        _resolve_with_ivy(directory)


def find_jars(source: Path) -> list[Path]:
    """List the jars of a folder to copy, without the classes of coldlog, which the package has.

    `UsageError` if it is no folder, or does not have what the installed Spark needs; the message says what that is.
    """
    series = installed_series()
    needed = [f"{artifact}-{version}.jar" for _, artifact, version in map(_parts, list_packages(series))]
    expected = (
        f"expected a folder with the {len(needed)} jars for Spark {series.name}, such as the one that `coldlog setup` "
        "prints on a machine with a network, or .jars of a checkout"
    )
    if not source.is_dir():
        raise UsageError(f"{source} is not a folder: {expected}")
    jars = sorted(each for each in source.glob("*.jar") if not each.name.startswith("coldlog"))
    missing = [name for name in needed if not any(each.name.endswith(name) for each in jars)]
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise UsageError(f"{source} has no {missing[0]}{more}: {expected}")
    return jars


def _parts(package: str) -> list[str]:
    return package.split(":")


def list_packages(series: SparkSeries) -> list[str]:
    """List the pom's dependencies for this Spark as group:artifact:version."""
    named = {**read_properties(), **series.jar_properties}
    return [
        _PROPERTY.sub(lambda found: named[found[1]], ":".join(part or "" for part in parts))
        for each in _read_pom().iterfind("m:dependencies/m:dependency", _MAVEN_NAMESPACE)
        for parts in [
            [each.findtext(f"m:{part}", "", _MAVEN_NAMESPACE) for part in ("groupId", "artifactId", "version")]
        ]
    ]


def read_properties() -> dict[str, str]:
    """The versions that the pom names."""
    return {
        each.tag.split("}")[1]: each.text or "" for each in _read_pom().iterfind("m:properties/*", _MAVEN_NAMESPACE)
    }


def _read_pom() -> ElementTree.Element:
    return ElementTree.parse(POM).getroot()


def _resolve_with_ivy(directory: Path) -> None:
    """Let spark-submit resolve the packages, which it does before it runs a program; this program is empty."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise UsageError("neither Maven (mvn) nor pyspark is there to resolve jars: install one of them")
    program, ivy = directory / "empty.py", directory / "ivy"
    program.touch()
    conf = {
        "spark.jars.ivy": str(ivy),
        "spark.jars.packages": ",".join(list_packages(installed_series())),
        "spark.jars.excludes": ",".join(_IVY_EXCLUDES),
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    # SPARK_HOME is set here, because Spark's search for it fails if the path has a space.
    home = Path(spark.origin).parent
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    _run([str(home / "bin" / "spark-submit"), "--master", "local[1]", *options, str(program)], environment)
    for jar in (ivy / "jars").glob("*.jar"):
        if jar.name.startswith(IVY_GROUPS):
            jar.rename(directory / jar.name)
    shutil.rmtree(ivy)
    program.unlink()


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program; show its output only if it fails."""
    ran = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        close_fds=False,
    )
    if ran.returncode != 0:
        sys.stderr.write(ran.stdout.decode(errors="replace"))
        raise ColdlogError(f"{command[0]} failed with exit code {ran.returncode}, see above; fix that and start again")


if __name__ == "__main__":
    try:
        resolve_jars(Path(sys.argv[1]))
    except ColdlogError as failed:
        sys.exit(f"coldlog: {failed}")
