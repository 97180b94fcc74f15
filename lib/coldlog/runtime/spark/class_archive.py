"""Keep the classes that Spark's JVM has loaded, so that the next one starts with less work.

A third of the processor time of a small job's JVM is spent on finding, checking and laying out some 15,000 classes.
Java can keep them in a file (class data sharing; "dynamic archive" in Java's documents). The first job that ends well
writes it, and the next ones map it. The name of the file has a digest of Java and of all jars, so another Java or
another jar gets a file of its own. Java compares them again and ignores a file that does not fit. But it crashes if the
file is damaged. So the name has the checksum of the content as well, which is compared at each start (0.1 s).

Java shares classes only if the class path has no folder with files. Spark's launcher puts the folder of its
configuration there. Of coldlog's own configuration the JVM needs `log4j2.properties` only, which an option names as
well. Any other folder, as of a cluster's Hadoop, stays, and no classes are shared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

_ENDING = ".jsa"
_BASE = "lib/server/classes.jsa"
"""Java's own archive, on which others build; a Java without it cannot share classes."""
_QUIET = "-Xlog:cds*=off"
"""Otherwise Java prints, into the job's output, which classes it leaves out, and why an archive does not fit."""
_USERS_WORDS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_USERS_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_KEPT_FILES = 3
_LEFT_BEHIND_S = 3600.0
_NEEDED_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive of a JVM. `file` is None if there is none yet; then the JVM can write it."""

    folder: Path
    digest: str
    file: Path | None

    @property
    def options(self) -> list[str]:
        """The options of the JVM."""
        return [f"-XX:SharedArchiveFile={self.file}" if self.file else "-XX:+RecordDynamicDumpInfo", _QUIET]

    def write(self, gateway: JavaGateway) -> bool:
        """Let the JVM write the classes that it has loaded; False if it cannot. It goes on afterwards.

        This takes some seconds, in which all threads of the JVM stand still.
        """
        from py4j.protocol import Py4JJavaError  # a lookup without Spark does not load it

        written = self.folder / f"{self.digest}.{os.getpid()}.part"
        java = gateway.jvm.java
        output = java.lang.System.out
        # Java prints the name of the file. Standard output is for the answers of the job.
        java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        try:
            _call_diagnostics(gateway, "vmCds", "dynamic_dump", str(written))
            written.replace(self.folder / _name(self.digest, written))
        except (Py4JJavaError, OSError):  # a Java that refuses, or answers why it wrote nothing
            return False
        finally:
            java.lang.System.setOut(output)
            written.unlink(missing_ok=True)
        with suppress(OSError):  # another job removes them, too
            _remove_old(self.folder)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSharing:
    """How a JVM shares classes.

    `folder` has the archives. `conf` is the folder of coldlog's configuration. `may_write`: the JVM must be able to
    write an archive if there is none.
    """

    folder: Path
    conf: Path
    may_write: bool = False

    def share(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], ClassArchive | None]:
        """Return the command of a JVM that shares classes, and its archive; the same command and None if it cannot.

        `command` is Spark's: java, its options, the class and its arguments.
        """
        words = list(command)
        at = words.index("-cp") + 1
        places = [place for place in words[at].split(os.pathsep) if place and Path(place) != self.conf]
        jars = [jar for place in places for jar in _jars(place)]
        base = Path(words[0]).resolve().parent.parent / _BASE
        asked = " ".join([*words, *(environment.get(name, "") for name in _USERS_VARIABLES)])
        if None in jars or not base.is_file() or any(word in asked for word in _USERS_WORDS):
            return words, None
        archive = self._archive(_digest([base, *(jar for jar in jars if jar is not None)]))
        if archive is not None:
            words[at] = os.pathsep.join(places)
            words[1:1] = [*archive.options, f"-Dlog4j2.configurationFile={(self.conf / 'log4j2.properties').as_uri()}"]
        return words, archive

    def _archive(self, digest: str) -> ClassArchive | None:
        for file in sorted(self.folder.glob(f"{digest}.*{_ENDING}")):
            with suppress(OSError):  # of another user, or removed just now
                if file.name == _name(digest, file):
                    return ClassArchive(folder=self.folder, digest=digest, file=file)
        is_possible = self.may_write and _has_room(self.folder)
        return ClassArchive(folder=self.folder, digest=digest, file=None) if is_possible else None


def _call_diagnostics(gateway: JavaGateway, command: str, *arguments: str) -> str:
    """Call one of the JVM's diagnostic commands, as `jcmd` does, which a JRE lacks; return its answer."""
    java = gateway.jvm.java.lang

    def array(kind: Any, *values: Any) -> Any:
        made = gateway.new_array(kind, len(values))
        for at, value in enumerate(values):
            made[at] = value
        return made

    types = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    # By reflection: the class of the server is Java's own, and Py4J finds no method of it.
    invoke = java.Class.forName("javax.management.MBeanServer").getMethod(
        "invoke", array(java.Class, *map(java.Class.forName, types))
    )
    name = gateway.jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    given = array(java.Object, array(java.String, *arguments))
    server = java.management.ManagementFactory.getPlatformMBeanServer()
    return str(invoke.invoke(server, array(java.Object, name, command, given, array(java.String, types[3]))))


def _jars(place: str) -> Iterator[Path | None]:
    """The jars at a place of a class path; None if it is something else."""
    path = Path(place)
    if path.name == "*" and path.parent.is_dir():
        yield from sorted(each for each in path.parent.iterdir() if each.suffix == ".jar")
    else:
        yield path if path.suffix == ".jar" and path.is_file() else None


def _digest(files: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        state = file.stat()
        found.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return found.hexdigest()[:24]


def _name(digest: str, file: Path) -> str:
    """The name of an archive with the content of the file."""
    checksum = 0
    with file.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return f"{digest}.{checksum:08x}{_ENDING}"


def _has_room(folder: Path) -> bool:
    """Whether the folder is there, can be written, and its disk has room for an archive; else it is made.

    So a job in a container that is used once writes no archive. Setup makes the folder, too.
    """
    try:
        if folder.is_dir():
            return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _NEEDED_BYTES
        folder.mkdir(parents=True)
    except OSError:
        pass  # a read-only file system: the JVM starts as it does without an archive
    return False


def _remove_old(folder: Path) -> None:
    """Remove all archives but the newest, and what killed jobs left behind."""
    archives = sorted(folder.glob(f"*{_ENDING}"), key=lambda each: each.stat().st_mtime, reverse=True)
    parts = [each for each in folder.glob("*.part") if each.stat().st_mtime < time.time() - _LEFT_BEHIND_S]
    for each in [*archives[_KEPT_FILES:], *parts]:
        each.unlink(missing_ok=True)
