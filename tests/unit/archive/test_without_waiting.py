"""Test what is opened without waiting for a store, and which bytes are known to be in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldlog.archive.stores import without_waiting as module
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.archive.stores.without_waiting import WouldWaitError, check_may_wait, may_wait, without_waiting
from coldlog.errors import ArchiveError
from stores.telling_folder import forget, telling_folder

_SIZE, _PAGE = 40_000, os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[LocalStore, Path, bool]]:
    """A store with a file of ten pages, and whether the system tells what of it is in memory."""
    with ExitStack() as opened:
        found = opened.enter_context(telling_folder())
        folder = found or tmp_path
        log = folder / "log"
        log.write_bytes(bytes(_SIZE))
        yield LocalStore(root=str(folder), uri=str(folder)), log, found is not None


def _opened(store: LocalStore) -> StoredFile:
    file = store.open_file("log")
    assert file is not None
    return file


@pytest.mark.parametrize("has_cachestat", [True, False])
def test_bytes_are_in_memory_if_all_their_pages_are(
    place: tuple[LocalStore, Path, bool], monkeypatch: pytest.MonkeyPatch, has_cachestat: bool
) -> None:
    store, log, tells = place
    if not has_cachestat:  # An older kernel, or a file of another user.
        monkeypatch.setattr(module, "_CACHESTAT", 1 << 20)
    file = _opened(store)
    assert file.is_in_memory(0, _SIZE) is tells
    assert file.is_in_memory(_SIZE - 1, 1) is tells
    assert not file.is_in_memory(0, _SIZE + _PAGE), "no file is longer than it is"
    if not (tells and has_cachestat):
        return  # A quick disk may have read what was missing before the answer.
    os.posix_fadvise(file.descriptor.number, 0, 0, os.POSIX_FADV_RANDOM)  # Nothing is read ahead.
    forget(log)
    assert not file.is_in_memory(0, 1)
    os.pread(file.descriptor.number, 1, 3 * _PAGE)
    assert file.is_in_memory(3 * _PAGE, _PAGE)
    for begin, size_bytes in ((3 * _PAGE - 1, 2), (3 * _PAGE, _PAGE + 1), (0, _SIZE)):
        assert not file.is_in_memory(begin, size_bytes)


def test_only_a_file_system_of_this_machine_is_waited_for(place: tuple[LocalStore, Path, bool]) -> None:
    store, log, tells = place
    file = _opened(store)
    assert file.waits_for_a_disk_only(0) is tells
    forget(log)
    assert file.waits_for_a_disk_only(0) is tells, "also if nothing of it is in memory"
    kernel = LocalStore(root="/proc/self", uri="/proc/self").open_file("status")
    assert kernel is not None
    assert not kernel.waits_for_a_disk_only(0)


def test_a_file_is_opened_without_waiting_if_its_inode_is_in_memory(place: tuple[LocalStore, Path, bool]) -> None:
    store, _, tells = place
    kept = _opened(store)
    with without_waiting():
        if tells:
            assert _opened(store).state == kept.state
        with pytest.raises((ArchiveError, WouldWaitError)):
            store.open_file("missing")
        # The kernel makes it when it is opened for the first time.
        with pytest.raises(WouldWaitError):
            LocalStore(root=f"/proc/{os.getpid()}/task", uri="").open_file(f"{os.getpid()}/smaps")
    assert _opened(store).state == kept.state


def test_a_thread_may_wait_again_after_the_block_however_it_ends() -> None:
    answers = [may_wait()]

    def ask_in_a_hurry() -> None:
        with without_waiting():
            answers.append(may_wait())
            check_may_wait()

    with pytest.raises(WouldWaitError):
        ask_in_a_hurry()
    check_may_wait()
    assert [*answers, may_wait()] == [True, False, True]
