"""Test which archive a uri and a layout name open, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.archive.open_archive import directory_of, open_archive
from coldlog.errors import UsageError
from worlds.kafka_sample import KAFKA_SAMPLE

LAYOUT = "local_tiered_storage"
PARTITION = "orders-0-AAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    "below", ["archive", "archive/", "archive/kafka-tiered-storage", "archive/kafka-tiered-storage/"]
)
@pytest.mark.parametrize("scheme", ["", "file:", "file://", "file://localhost"])
def test_every_way_to_name_a_real_archive_opens_the_same_tree(scheme: str, below: str) -> None:
    uri = f"{scheme}{KAFKA_SAMPLE}/{below}"
    layout = open_archive(uri, LAYOUT)
    assert (layout.uri, layout.name) == (uri, LAYOUT)
    assert len(layout.list_partition_directories().directories) == 30


def test_relative_path_is_resolved_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tier" / "kafka-tiered-storage" / PARTITION).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    layout = open_archive("tier", LAYOUT)
    monkeypatch.chdir("/")
    assert [directory.name for directory in layout.list_partition_directories().directories] == [PARTITION]


def test_escapes_are_decoded_in_a_file_uri_but_not_in_a_path() -> None:
    assert directory_of("file:///an%20archive") == "/an archive"
    assert directory_of("/an%20archive") == "/an%20archive"
    assert directory_of("/a#b?c") == "/a#b?c"


def test_a_copy_of_the_tree_under_another_name_opens(tmp_path: Path) -> None:
    (tmp_path / "backup" / PARTITION).mkdir(parents=True)
    layout = open_archive(str(tmp_path / "backup"), LAYOUT)
    assert len(layout.list_partition_directories().directories) == 1


def test_an_archive_that_is_still_empty_opens(tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    assert open_archive(str(tmp_path), LAYOUT).list_partition_directories().directories == ()


def test_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown archive layout 'local'; use one of: local_tiered_storage"):
        open_archive(str(tmp_path), "local")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for missing in ("none", "file"):
        with pytest.raises(UsageError, match=f"no archive at .*{missing}"):
            open_archive(str(tmp_path / missing), LAYOUT)


def test_directory_without_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(UsageError, match="has neither kafka-tiered-storage nor"):
        open_archive(str(tmp_path), LAYOUT)


@pytest.mark.parametrize("uri", ["", "gs://bucket/prefix", "file://host/path", "file:relative", "/a\0b"])
def test_uris_that_cannot_be_opened_are_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        open_archive(uri, LAYOUT)
