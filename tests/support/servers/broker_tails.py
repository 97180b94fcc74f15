"""Write a broker's log directory that goes on after the golden archive, with transactions of every fate.

Each partition has all golden segments, then a closed segment and the active one. There the transactions that are open
where the archive ends are aborted, then committed, in turn; another one is aborted, one committed and one stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from builders.broker_directory import write_broker_directory
from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint
from builders.segment_builder import Batch, Record, Segment, abort_marker, build_batch, commit_marker
from builders.side_files import AbortedTransaction, build_indexes, build_txn_index
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from contents.record_rows import consumed, true_batches

TAIL_MS = 1 << 42
"""The timestamp of the first record after the archive; each offset is a millisecond later."""
_ABORTED, _COMMITTED, _OPEN = 9001, 9002, 9003


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the directory has from the archive's end, `begin`, on: where it ends, where its active segment begins, the
    offsets of its records and of those that committed readers see, and by producer the transactions that are open at
    `begin`: their first offset, and whether they are committed later."""

    begin: int
    active: int
    stable: int
    end: int
    offsets: tuple[int, ...]
    committed: tuple[int, ...]
    fates: Mapping[int, tuple[int, bool]]

    def whole_log(self, place: tuple[str, int], *, is_committed: bool) -> list[int]:
        """Return the offsets that a consumer gets of the archive and the directory together."""
        archived = [(row["o"], row["rc"]) for row in consumed(*place)]
        if not is_committed:
            return [*(offset for offset, _ in archived), *self.offsets]
        fated = {
            offset: self.fates[batch["pid"]][1]
            for batch in true_batches(*place)
            if batch["pid"] in self.fates and batch["base"] >= self.fates[batch["pid"]][0]
            for offset in range(batch["base"], batch["last"] + 1)
        }
        return [*(offset for offset, is_good in archived if fated.get(offset, is_good)), *self.committed]


def write_broker_tails(directory: Path, topics: Collection[str]) -> dict[tuple[str, int], Tail]:
    """Write the directory; return what it has after the archive, by partition."""
    last = {(each["topic"], each["partition"]): each for each in write_broker_directory(directory, topics)}
    tails = {place: _write_tail(directory, place, each["end_offset"] + 1) for place, each in last.items()}
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {place: tail.end for place, tail in tails.items()})
    return tails


def delete_segments_before(directory: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Delete segments, as a broker does after local.retention.ms."""
    for (topic, partition), offset in offsets.items():
        for path in (directory / f"{topic}-{partition}").glob("0*.*"):
            if int(path.stem) < offset:
                path.unlink()


def _write_tail(directory: Path, place: tuple[str, int], begin: int) -> Tail:
    folder, epoch = directory / f"{place[0]}-{place[1]}", 90
    snapshot = read_producer_snapshot(memoryview((folder / f"{begin:020d}.snapshot").read_bytes()))
    still_open = [each for each in snapshot.entries if each.has_open_transaction]
    first = [
        (abort_marker if number % 2 == 0 else commit_marker)(
            offset=begin + number,
            timestamp_ms=0,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            leader_epoch=epoch,
        )
        for number, each in enumerate(still_open)
    ]
    aborted = [
        AbortedTransaction(
            producer_id=each.producer_id,
            first_offset=each.current_txn_first_offset,
            last_offset=begin + number,
            last_stable_offset=begin,
        )
        for number, each in enumerate(still_open)
        if number % 2 == 0
    ]
    at = begin + len(first)
    closed = [*first, _batch(at, epoch), _batch(at + 2, epoch, _ABORTED), _batch(at + 4, epoch, _COMMITTED)]
    active = [
        _batch(at + 6, epoch),
        abort_marker(offset=at + 8, timestamp_ms=0, producer_id=_ABORTED, producer_epoch=0, leader_epoch=epoch),
        commit_marker(offset=at + 9, timestamp_ms=0, producer_id=_COMMITTED, producer_epoch=0, leader_epoch=epoch),
        _batch(at + 10, epoch),
        _batch(at + 12, epoch, _OPEN),
        _batch(at + 14, epoch),
    ]
    _write(folder, Segment(batches=tuple(closed), index_interval_bytes=0), aborted)
    in_active = AbortedTransaction(
        producer_id=_ABORTED, first_offset=at + 2, last_offset=at + 8, last_stable_offset=at + 4
    )
    _write(folder, Segment(batches=tuple(active), index_interval_bytes=0), [in_active])
    return Tail(
        begin=begin,
        end=at + 16,
        active=at + 6,
        stable=at + 12,
        offsets=(*range(at, at + 8), *range(at + 10, at + 16)),
        committed=(at, at + 1, *range(at + 4, at + 8), at + 10, at + 11),
        fates={
            each.producer_id: (each.current_txn_first_offset, number % 2 == 1) for number, each in enumerate(still_open)
        },
    )


def _batch(base_offset: int, leader_epoch: int, producer_id: int = -1) -> Batch:
    is_transactional = producer_id >= 0
    return Batch(
        base_offset=base_offset,
        records=tuple(Record(timestamp_ms=TAIL_MS + base_offset + at, value=b"new") for at in range(2)),
        leader_epoch=leader_epoch,
        is_transactional=is_transactional,
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
    )


def _write(folder: Path, segment: Segment, aborted: list[AbortedTransaction]) -> None:
    stem = f"{segment.start_offset:020d}"
    batches = [build_batch(batch) for batch in segment.batches]
    offset_index, time_index = build_indexes(segment, [len(batch) for batch in batches])
    (folder / f"{stem}.log").write_bytes(b"".join(batches))
    (folder / f"{stem}.index").write_bytes(offset_index)
    (folder / f"{stem}.timeindex").write_bytes(time_index)
    if aborted:
        (folder / f"{stem}.txnindex").write_bytes(build_txn_index(aborted))
