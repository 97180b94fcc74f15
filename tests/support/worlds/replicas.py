"""replicas: what three replicas of a partition upload while its leaders change, and what its log then has.

Leaders may be elected uncleanly: then a replica with fewer records, or with others, leads, and what former leaders
uploaded beyond that is not part of the log. A new leader uploads from the greatest offset on that it finds uploaded in
its own epochs, as `RemoteLogManager.findHighestRemoteOffset` does; its segments begin where its own log rolled. Some
records are of transactions, and some timestamps are old, equal or -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from builders.segment_builder import Batch, Record, abort_marker, commit_marker, is_abort_marker
from builders.side_files import extend_lineage

_FIRST_MS = 1_700_000_000_000
_PRODUCERS = (7, 8)
Log = list[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A segment as its leader uploaded it, with the batches of the leader's log before it. `end` is inclusive."""

    start: int
    end: int
    batches: tuple[Batch, ...]
    before: tuple[tuple[Batch, ...], ...]

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The leader epochs of the segment, each with its first offset."""
        return extend_lineage((), self.batches)


@dataclass(slots=True)
class Replicas:
    """Three replicas, the leader among them, and the uploads of all leaders."""

    seed: int
    logs: list[Log] = field(default_factory=lambda: [[], [], []])
    uploads: list[Upload] = field(default_factory=list)
    leader: int = 0
    epoch: int = 0
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    @property
    def log(self) -> Log:
        """The leader's log."""
        return self.logs[self.leader]

    def live(self, steps: int) -> None:
        """Write, replicate, upload and elect leaders, so many times in all."""
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.6:
                self._write()
            elif chance < 0.75:
                self._replicate()
            elif chance < 0.88:
                self.upload()
            else:
                self.leader, self.epoch = self.random.randrange(3), self.epoch + 1

    def settle(self) -> None:
        """End all transactions, and upload until the last epoch is in the archive."""
        for _ in range(6):
            for producer_id in _open_transactions(self.log):
                self.log.append(self._marker(producer_id))
            for _ in range(3):
                record = Record(timestamp_ms=_FIRST_MS + 10 * _end(self.log), value=b"z")
                self.log.append(Batch(base_offset=_end(self.log), records=(record,), leader_epoch=self.epoch))
        self.upload(stop_share=0)

    def upload(self, *, stop_share: float = 0.15) -> None:
        """Upload the closed segments of the leader up to its last stable offset; it may stop after each."""
        segments = self._segments()
        stable = min(_open_transactions(self.log).values(), default=_end(self.log))
        done = self._highest_uploaded()
        for at, batches in enumerate(segments[:-1]):
            end = segments[at + 1][0].base_offset - 1
            if end <= done:
                continue
            if end >= stable or self.random.random() < stop_share:
                return
            before = tuple(map(tuple, segments[:at]))
            upload = Upload(start=batches[0].base_offset, end=end, batches=tuple(batches), before=before)
            self.uploads.append(upload)
            done = end

    def _write(self) -> None:
        offset, opened = _end(self.log), _open_transactions(self.log)
        producer_id = self.random.choice(_PRODUCERS) if self.random.random() < 0.5 else -1
        if producer_id in opened and self.random.random() < 0.6:
            self.log.append(self._marker(producer_id))
            return
        times = (-1, 0, _FIRST_MS + 10 * offset, _FIRST_MS + 10 * offset + self.random.randint(0, 200))
        records = tuple(
            Record(timestamp_ms=self.random.choice(times), value=b"%d" % at) for at in range(self.random.randint(1, 4))
        )
        is_transactional = producer_id >= 0
        batch = Batch(
            base_offset=offset,
            records=records,
            leader_epoch=self.epoch,
            last_offset_delta=len(records) - 1 + self.random.choice((0, 0, 0, 1)),
            log_append_time_ms=_FIRST_MS + 10 * offset if self.random.random() < 0.15 else None,
            is_transactional=is_transactional,
            producer_id=producer_id,
            producer_epoch=0 if is_transactional else -1,
            base_sequence=offset if is_transactional else -1,
        )
        self.log.append(batch)

    def _marker(self, producer_id: int) -> Batch:
        made = abort_marker if self.random.random() < 0.5 else commit_marker
        time = _FIRST_MS + self.random.randint(-50, 3_000)
        return made(
            offset=_end(self.log), timestamp_ms=time, producer_id=producer_id, producer_epoch=0, leader_epoch=self.epoch
        )

    def _replicate(self) -> None:
        """Let followers fetch: each truncates what differs, and then has a part of the leader's log."""
        for at, log in enumerate(self.logs):
            if at != self.leader and self.random.random() < 0.7:
                same = _count_same(log, self.log)
                self.logs[at] = self.log[: self.random.randint(same, len(self.log))]

    def _segments(self) -> list[Log]:
        """The leader's log as this replica has rolled it."""
        segments: list[Log] = [[]]
        for batch in self.log:
            rolls = Random(f"{self.seed} {self.leader} {batch.base_offset} {batch.leader_epoch}").random() < 0.35
            if segments[-1] and rolls:
                segments.append([])
            segments[-1].append(batch)
        return segments

    def _highest_uploaded(self) -> int:
        """The greatest offset that is uploaded in an epoch of the leader's log, and part of that epoch; -1: none."""
        lineage = extend_lineage((), self.log)
        for at in reversed(range(len(lineage))):
            epoch = lineage[at][0]
            ends = [end for upload in self.uploads for each, end in _ends_of_epochs(upload) if each == epoch]
            if ends:
                end_of_epoch = lineage[at + 1][1] if at + 1 < len(lineage) else _end(self.log)
                return min(max(ends), end_of_epoch - 1)
        return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the archived part of the log has; `end` is the offset after it."""

    batches: tuple[Batch, ...]
    end: int

    @property
    def stable_offset(self) -> int:
        """The first offset of the oldest transaction that is open at the end."""
        return min(_open_transactions(self.batches).values(), default=self.end)

    def offsets(self, start: int) -> list[int]:
        """The offsets that a consumer gets from `start` on, with read_uncommitted."""
        return [each.offset for batch in self.batches if not batch.is_control for each in batch.placed_records
                if each.offset >= start]  # fmt: skip

    def committed_offsets(self, start: int) -> list[int]:
        """The same with read_committed."""
        aborted = list(self._aborted())
        return [
            each.offset
            for batch in self.batches
            if not batch.is_control and not (batch.is_transactional and _is_aborted(batch, aborted))
            for each in batch.placed_records
            if start <= each.offset < self.stable_offset
        ]

    def _aborted(self) -> Iterator[tuple[int, int, int]]:
        """Producer, first offset and marker of each aborted transaction."""
        opened = dict[int, int]()
        for batch in self.batches:
            if not batch.is_control:
                if batch.is_transactional:
                    opened.setdefault(batch.producer_id, batch.base_offset)
                continue
            first = opened.pop(batch.producer_id, None)
            if first is not None and is_abort_marker(batch):
                yield batch.producer_id, first, batch.base_offset


def archived_truth(replicas: Replicas) -> Truth | None:
    """The part of the leader's log that is archived; None if that is not its beginning, or lacks the last epoch."""
    uploaded = {id(batch) for upload in replicas.uploads for batch in upload.batches}
    batches = [batch for batch in replicas.log if id(batch) in uploaded]
    if not batches or batches != replicas.log[: len(batches)] or batches[-1].leader_epoch != replicas.epoch:
        return None
    last = batches[-1]
    ends = [upload.end for upload in replicas.uploads if upload.batches[-1] is last]
    return Truth(batches=tuple(batches), end=max(ends) + 1)


def _ends_of_epochs(upload: Upload) -> Iterator[tuple[int, int]]:
    epochs = upload.epochs
    for at, (epoch, _) in enumerate(epochs):
        yield epoch, epochs[at + 1][1] - 1 if at + 1 < len(epochs) else upload.end


def _is_aborted(batch: Batch, aborted: Sequence[tuple[int, int, int]]) -> bool:
    return any(batch.producer_id == each and first <= batch.base_offset <= last for each, first, last in aborted)


def _count_same(one: Log, other: Log) -> int:
    """How many batches both logs begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine is not its), min(len(one), len(other)))


def _end(log: Sequence[Batch]) -> int:
    return log[-1].last_offset + 1 if log else 0


def _open_transactions(log: Sequence[Batch]) -> dict[int, int]:
    """The first offset of each producer's transaction that is open at the end."""
    opened = dict[int, int]()
    for batch in log:
        if batch.is_control:
            opened.pop(batch.producer_id, None)
        elif batch.is_transactional:
            opened.setdefault(batch.producer_id, batch.base_offset)
    return opened
