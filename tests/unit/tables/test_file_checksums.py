"""Test that the checksums of files are Hadoop's, and that every damage of a file or of its checksums is refused."""

from __future__ import annotations

import random
import re
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from coldlog.errors import ColdlogError
from coldlog.tables.delta.files.file_checksums import (
    CheckedFile,
    check_file,
    checksums_path,
    find_checksums,
    read_checked,
    write_checksums,
)

(PACKED,) = (Path(__file__).parents[2] / "golden" / "warehouses").glob("*.tar.gz")
SIZES = (0, 1, 511, 512, 513, 5_000)


@pytest.fixture(params=SIZES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of random bytes with its checksums."""
    file = tmp_path / "part-0.parquet"
    file.write_bytes(random.Random(request.param).randbytes(request.param))
    write_checksums(str(file))
    return file


def test_written_checksums_equal_those_that_hadoop_wrote(tmp_path: Path) -> None:
    with tarfile.open(PACKED) as files:
        files.extractall(tmp_path, filter="data")
    written = [each for each in tmp_path.rglob("*") if Path(checksums_path(str(each))).is_file()]
    assert len(written) > 50
    for each in written:
        stored = Path(checksums_path(str(each)))
        content = stored.read_bytes()
        check_file(str(each))
        write_checksums(str(each))
        assert stored.read_bytes() == content, each


def test_every_range_of_a_sound_file_is_read(path: Path) -> None:
    content, chance = path.read_bytes(), random.Random(2)
    found = find_checksums(str(path))
    assert found is not None
    assert read_checked(found) == content
    with closing(CheckedFile(found)) as file:
        assert file.read() == content
        for _ in range(200):
            start, size = chance.randrange(len(content) + 1), chance.randrange(1_200)
            assert file.seek(start) == start
            assert file.read(size) == content[start : start + size]
            assert file.tell() == min(start + size, len(content))


def test_each_flipped_bit_is_refused_in_the_file_and_in_its_checksums(path: Path) -> None:
    chance = random.Random(3)
    for damaged, begin in ((path, 0), (Path(checksums_path(str(path))), 8)):
        content = damaged.read_bytes()
        for at in chance.sample(range(begin, len(content)), min(200, len(content) - begin)):
            damaged.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
            with pytest.raises(ColdlogError, match=f"^{re.escape(str(path))} is damaged: .*; restore it from"):
                check_file(str(path))
        damaged.write_bytes(content)
    check_file(str(path))


def test_checksums_of_another_layout_are_refused(path: Path) -> None:
    stored = Path(checksums_path(str(path)))
    content = stored.read_bytes()
    for changed in (b"", b"crc", b"crd\0" + content[4:], content[:4] + bytes(4) + content[8:], content + b"x"):
        stored.write_bytes(changed)
        with pytest.raises(ColdlogError, match=f"does not fit {re.escape(str(stored))}"):
            check_file(str(path))


def test_a_cut_or_longer_file_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for changed in (content[:-1], content[: len(content) // 2], b"", content + b"x", content + bytes(512)):
        if changed != content:
            path.write_bytes(changed)
            with pytest.raises(ColdlogError, match="is damaged"):
                check_file(str(path))


def test_a_file_that_is_cut_while_it_is_read_is_refused(path: Path) -> None:
    found = find_checksums(str(path))
    assert found is not None
    with closing(CheckedFile(found)) as file:
        path.write_bytes(path.read_bytes()[:-1])
        if found.file_bytes:
            with pytest.raises(ColdlogError, match="it was cut to"):
                file.read()
            with pytest.raises(ColdlogError, match=f"its size changed from {found.file_bytes} to"):
                read_checked(found)


def test_a_file_without_checksums_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"any")
    assert find_checksums(str(tmp_path / "a")) is None
    check_file(str(tmp_path / "a"))
