"""Test when Spark's JVM shares its classes, and with which archive."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from coldlog.runtime.spark.class_archive import ClassSharing


@pytest.fixture
def sharing(tmp_path: Path) -> ClassSharing:
    """A Java, two jars, coldlog's configuration and a folder for archives."""
    for folder in ("java/bin", "java/lib/server", "jars", "conf", "archives"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("java/bin/java", "java/lib/server/classes.jsa", "jars/a.jar", "jars/b.jar", "conf/log4j2.properties"):
        (tmp_path / file).touch()
    return ClassSharing(folder=tmp_path / "archives", conf=tmp_path / "conf", may_write=True)


def command(sharing: ClassSharing, *class_path: str, options: tuple[str, ...] = ()) -> list[str]:
    place = sharing.conf.parent
    path = os.pathsep.join(class_path or (f"{sharing.conf}/", f"{place}/jars/*"))
    return [f"{place}/java/bin/java", *options, "-cp", path, "SparkSubmit", "pyspark-shell"]


def test_a_jvm_writes_the_archive_that_the_next_one_uses(sharing: ClassSharing) -> None:
    words, first = sharing.share(command(sharing), {})
    assert first is not None
    assert first.file is None
    assert "-XX:+RecordDynamicDumpInfo" in words
    # Java shares no classes if a folder is on the class path; Spark still finds how to log.
    assert words[words.index("-cp") + 1] == f"{sharing.conf.parent}/jars/*"
    assert f"-Dlog4j2.configurationFile={(sharing.conf / 'log4j2.properties').as_uri()}" in words
    assert words[-2:] == ["SparkSubmit", "pyspark-shell"]
    kept = sharing.folder / f"{first.digest}.{zlib.crc32(b'classes'):08x}.jsa"
    kept.write_bytes(b"classes")
    words, second = sharing.share(command(sharing), {})
    assert second is not None
    assert second.file == kept
    assert f"-XX:SharedArchiveFile={kept}" in words
    # Java crashes if it maps a damaged archive.
    kept.write_bytes(b"class")
    _, third = sharing.share(command(sharing), {})
    assert third == first
    # Nor does a job fail because the archive cannot be read.
    kept.unlink()
    kept.mkdir()
    _, fourth = sharing.share(command(sharing), {})
    assert fourth == first


def test_another_jar_or_another_java_gets_an_archive_of_its_own(sharing: ClassSharing) -> None:
    place, digests = sharing.conf.parent, []
    for change in ("", "jars/c.jar", "jars/a.jar", "java/lib/server/classes.jsa"):
        if change:
            (place / change).write_text("other")
        _, archive = sharing.share(command(sharing), {})
        assert archive is not None
        digests.append(archive.digest)
    assert len(set(digests)) == 4


@pytest.mark.parametrize("of_the_user", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa"])
def test_options_of_the_user_are_left_alone(sharing: ClassSharing, of_the_user: str) -> None:
    given = command(sharing, options=(of_the_user,))
    assert sharing.share(given, {}) == (given, None)
    given = command(sharing)
    assert sharing.share(given, {"JAVA_TOOL_OPTIONS": of_the_user}) == (given, None)


def test_nothing_changes_where_java_cannot_share_classes(sharing: ClassSharing) -> None:
    place = sharing.conf.parent
    (place / "hadoop").mkdir()
    given = command(sharing, f"{sharing.conf}/", f"{place}/jars/*", f"{place}/hadoop/")
    assert sharing.share(given, {}) == (given, None)
    (place / "java/lib/server/classes.jsa").unlink()
    given = command(sharing)
    assert sharing.share(given, {}) == (given, None)


def test_only_a_job_writes_and_only_into_a_folder_that_was_there(sharing: ClassSharing) -> None:
    given = command(sharing)
    reader = ClassSharing(folder=sharing.folder, conf=sharing.conf)
    assert reader.share(given, {}) == (given, None)
    # In a container that is used once, the only job would write an archive that nobody uses.
    new = ClassSharing(folder=sharing.folder / "new", conf=sharing.conf, may_write=True)
    assert new.share(given, {}) == (given, None)
    assert new.share(given, {})[1] is not None
