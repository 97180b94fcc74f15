"""Find the sound batches of a damaged log, and the holes between them.

A walk collects the batches whose checksum holds, from the log's beginning, one after another. Behind a damaged batch it
goes on

1. where that batch ends by its length, if a batch with a good checksum begins there;
2. otherwise at the first place behind it where such a batch begins and its successors lead to the next position in the
   offset index at which a batch begins, or to the log's end. A batch inside the value of a record does not.

The checksum does not cover a batch's base offset, length, leader epoch and magic. So a collected batch is left out

- if its offsets lie outside the segment,
- if its leader epoch is not that of the lineage at its offset, and it is the only one,
- if it is the same as an earlier one (bytes that are there twice),
- if its offsets do not ascend, or its epochs fall. If the batches on both sides show which of two is wrong, only that
  one is left out, otherwise both.
- if its offsets would fill the gap between its neighbours exactly, but lie beside it,
- if it is the first behind a damaged place, and nothing confirms its offsets: they follow those of the batch before,
  are followed by those of the next one, or a side file or the announced end names the last one.

Where batches were left out or bytes belong to no batch, there is a hole. Its offsets are those between the sound
batches on its two sides. A compacted log has gaps in its offsets without damage; these are no holes. But if bytes are
missing, and nothing else shows where, whole batches are: then every gap is a hole, and the batch before it is left out.
The cut may have given that batch the base offset of a lost one.

Memory: 48 bytes for each batch. Kafka's own recovery is different: it drops everything from the first bad batch on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.index_entries import INT32_MAX
from coldlog.formats.kafka.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    BatchHeaders,
    read_batch_headers,
)
from coldlog.formats.kafka.time_index import TimeIndex
from coldlog.index.changed_logs import shorter_log
from coldlog.index.index_checks import may_end
from coldlog.index.leader_epoch_lineage import EpochStart, filter_epochs

_BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size_bytes", np.int32),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("leader_epoch", np.int32),
        ("max_timestamp_ms", np.int64),
        ("record_count", np.int32),
        ("crc", np.uint32),
    ]
)
Batches = npt.NDArray[np.void]
_BUFFERED_BYTES = 1 << 20
_TRIED_POSITIONS = 16
"""Positions of the offset index that are tried behind a damage. If bytes were cut or doubled, none of them is right."""
_MOST_DAMAGES = 1000
_MOST_GAPS = 100
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Offsets that are lost, both inclusive, and the bytes of the log where they were.

    `to_offset` None: the end is unknown. `to_offset` below `from_offset`: no offset is lost, only the bytes are bad.
    """

    from_offset: int
    to_offset: int | None
    position: int
    end_position: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundBatches:
    """The sound batches of a log, one entry per batch, in order, and the holes between them."""

    batches: Batches
    holes: tuple[Hole, ...]

    def runs(self) -> list[tuple[int, int]]:
        """Return the first position of each run of sound batches, and the position after it."""
        begins, ends = self.batches["position"], self.batches["position"] + self.batches["size_bytes"]
        first = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        return list(zip(begins[[0, *first]].tolist(), ends[[*(first - 1), -1]].tolist(), strict=True))

    def holds_offsets(self, offsets: npt.NDArray[np.int64], *, as_last: bool) -> bool:
        """Return whether each offset is in a sound batch or in a hole; `as_last`: the last one of the batch."""
        batch = np.searchsorted(self.batches["last_offset"], offsets)
        within = np.minimum(batch, len(self.batches) - 1)
        found = self.batches["last_offset"][within] == offsets
        if not as_last:
            found |= (self.batches["base_offset"][within] <= offsets) & (batch == within)
        return self._are_found(offsets, found)

    def holds_index_entries(self, offsets: npt.NDArray[np.int64]) -> bool:
        """Return whether a sound batch may end with each offset of an offset index, or the offset is in a hole."""
        batch = np.searchsorted(self.batches["last_offset"], offsets)
        within = self.batches[np.minimum(batch, len(self.batches) - 1)]
        ends = may_end(within["record_count"], within["base_offset"], within["last_offset"], offsets)
        return self._are_found(offsets, ends & (batch < len(self.batches)))

    def _are_found(self, offsets: npt.NDArray[np.int64], found: npt.NDArray[np.bool_]) -> bool:
        """Return whether every offset is found or in a hole."""
        for hole in self.holes:
            found |= (offsets >= hole.from_offset) & (hole.to_offset is None or offsets <= hole.to_offset)
        return bool(found.all())

    def is_lost(self, offset: int) -> bool:
        """Return whether the offset is in a hole."""
        return any(
            hole.from_offset <= offset and (hole.to_offset is None or offset <= hole.to_offset) for hole in self.holes
        )

    def has_hole_between(self, one: int, other: int) -> bool:
        """Return whether a hole has an offset from one of the two to the other."""
        first, last = min(one, other), max(one, other)
        return any(
            hole.from_offset <= last and (hole.to_offset is None or hole.to_offset >= max(first, hole.from_offset))
            for hole in self.holes
        )

    def bound_of(self, hole: Hole, time_index: TimeIndex) -> int | None:
        """Return the largest timestamp that a record of the hole can have, from the time index; None if unknown.

        An entry has the largest timestamp up to its offset. It counts if a sound batch after the hole has both.
        """
        if hole.to_offset is None:
            return None
        after = int(np.searchsorted(time_index.offsets, hole.to_offset))
        offsets, times = time_index.offsets[after:], time_index.timestamps_ms[after:]
        batch = np.minimum(np.searchsorted(self.batches["last_offset"], offsets), len(self.batches) - 1)
        is_in_batch = (self.batches["base_offset"][batch] <= offsets) & (offsets <= self.batches["last_offset"][batch])
        confirmed = np.flatnonzero(is_in_batch & (self.batches["max_timestamp_ms"][batch] == times))
        return int(times[confirmed[0]]) if len(confirmed) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedLog:
    """A log, and what else is known of it.

    `read(position, length)` returns bytes of the log. `end_offset` is the segment's last offset if it was announced,
    `announced_size_bytes` its size.
    `named_offsets` are the last offsets of batches that side files name, ascending.
    `lineage` has the leader epochs of the partition up to the segment's end, none if they are not known. A position of
    `indexed_positions` is where a batch began when the log was written.
    """

    read: Callable[[int, int], memoryview]
    size_bytes: int
    start_offset: int
    end_offset: int | None
    announced_size_bytes: int | None
    named_offsets: npt.NDArray[np.int64]
    lineage: Sequence[EpochStart]
    indexed_positions: npt.NDArray[np.int64]
    max_batch_bytes: int
    window_bytes: int

    @property
    def highest_offset(self) -> int:
        return self.start_offset + INT32_MAX if self.end_offset is None else self.end_offset

    @property
    def least_end_offset(self) -> int:
        """The log ended at this offset or after it."""
        if self.end_offset is not None:
            return self.end_offset
        return int(self.named_offsets[-1]) if len(self.named_offsets) else -1


def find_sound_batches(log: DamagedLog) -> SoundBatches | None:
    """Return None if there is no sound batch, or so many damages that the search would not end soon."""
    found = _collect(log)
    if found is None:
        return None
    batches, refusals = found
    kept = _keep(batches, log)
    if kept is None or not len(kept):
        return None
    holes = tuple(_find_holes(kept, log, refusals))
    return SoundBatches(batches=kept, holes=holes) if holes else _without_whole_batches(kept, log)


def _without_whole_batches(kept: Batches, log: DamagedLog) -> SoundBatches | None:
    """Make each gap of the offsets a hole if bytes of the log are missing; None if none are, or no gap shows where."""
    is_short = not np.isin(log.indexed_positions, kept["position"]).all()
    if log.announced_size_bytes is not None:
        is_short = log.size_bytes < log.announced_size_bytes
    gaps = np.flatnonzero(kept["base_offset"][1:] != kept["last_offset"][:-1] + 1)
    is_gap_first = kept["base_offset"][0] != log.start_offset
    if not is_short or not 0 < len(gaps) + is_gap_first <= _MOST_GAPS:
        return None
    rest, reason = np.delete(kept, gaps), Reason.LOG_TRUNCATED
    if not len(rest):
        return None
    holes = list(_find_holes(rest, log, [], reason=reason))
    if is_gap_first and rest["position"][0] == 0:
        first, last = log.start_offset, int(rest["base_offset"][0]) - 1
        holes.insert(0, Hole(from_offset=first, to_offset=last, position=0, end_position=0, reason=reason))
    return SoundBatches(batches=rest, holes=tuple(holes))


def _collect(log: DamagedLog) -> tuple[Batches, list[ArchiveError]] | None:
    """Collect the batches whose checksum holds, and the errors at the damaged places."""
    walk, pieces, refusals, position = _Walk(log=log), [np.empty(0, dtype=_BATCH)], [], 0
    while position < log.size_bytes:
        position, refusal = walk.collect(position, log.size_bytes, pieces)
        if refusal is None:
            break
        refusals.append(refusal)
        if len(refusals) > _MOST_DAMAGES:
            return None
        position = walk.find_next(position)
    return np.concatenate(pieces), refusals


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Reads a log here and there; the last bytes that were read are kept."""

    log: DamagedLog
    _position: int = 0
    _window: memoryview = field(default_factory=lambda: memoryview(b""))

    def read(self, position: int, length: int) -> memoryview:
        start = position - self._position
        if start < 0 or start + length > len(self._window):
            wanted = min(max(length, min(_BUFFERED_BYTES, self.log.window_bytes)), self.log.size_bytes - position)
            window = self.log.read(position, wanted)
            if len(window) < wanted:
                raise shorter_log(position, f"{wanted} bytes from here on", f"{len(window)} bytes")
            self._position, self._window, start = position, window, 0
        return self._window[start : start + length]

    def collect(self, position: int, end: int, pieces: list[Batches]) -> tuple[int, ArchiveError | None]:
        """Add the batches from `position` on; return where a damaged one begins, and its error, or `end` and None."""
        needed = 0
        while position < end:
            wanted = min(max(self.log.window_bytes, needed), end - position)
            window = self.read(position, wanted)
            headers, refusal, needed = self._read_headers(window, position, is_last=position + wanted == end)
            if not len(headers):
                if refusal is not None:
                    return position, refusal
                continue
            pieces.append(_columns(headers))
            position = int(headers.position[-1]) + int(headers.size_bytes[-1])
        return position, None

    def _read_headers(
        self, window: memoryview, position: int, *, is_last: bool
    ) -> tuple[BatchHeaders, ArchiveError | None, int]:
        """Read the batches before the first damaged one. Offsets that do not ascend end them, too."""
        refusal: ArchiveError | None = None
        while True:
            try:
                read = read_batch_headers(
                    window,
                    position=position,
                    next_offset=0,
                    is_last=is_last,
                    max_batch_bytes=self.log.max_batch_bytes,
                )
            except ArchiveError as wrong:
                window, is_last, refusal = window[: wrong.position - position], True, wrong
            else:
                return read.headers, refusal, read.needed_bytes

    def find_next(self, position: int) -> int:
        """Return where the first sound batch behind the damaged one at `position` begins, or the log's end."""
        size = self.log.size_bytes
        after = self._end_by_length(position)
        if after is not None and (after == size or self._is_batch(after)):
            return after
        bound = self._next_indexed(position)
        for at in self._iter_candidates(position + 1, bound):
            if self._leads_to(at, bound):
                return at
        return bound

    def _end_by_length(self, position: int) -> int | None:
        """Return where the batch at `position` ends by its length; None if that cannot be its length."""
        if position + LENGTH_PREFIX_BYTES > self.log.size_bytes:
            return None
        length = int.from_bytes(self.read(position, LENGTH_PREFIX_BYTES)[8:], "big", signed=True)
        end = position + length + LENGTH_PREFIX_BYTES
        is_possible = MIN_BATCH_LENGTH <= length <= self.log.max_batch_bytes - LENGTH_PREFIX_BYTES
        return end if is_possible and end <= self.log.size_bytes else None

    def _is_batch(self, position: int) -> bool:
        """Return whether a batch with a good checksum begins at `position`."""
        end = self._end_by_length(position)
        if end is None:
            return False
        headers, _, _ = self._read_headers(self.read(position, end - position), position, is_last=True)
        return len(headers) == 1

    def _next_indexed(self, position: int) -> int:
        positions = self.log.indexed_positions
        first = int(np.searchsorted(positions, position, side="right"))
        tried = positions[first : first + _TRIED_POSITIONS].tolist()
        return next((at for at in tried if self._is_batch(at)), self.log.size_bytes)

    def _iter_candidates(self, first: int, end: int) -> Iterator[int]:
        """Yield positions before `end` at which a batch with a good checksum begins."""
        while first + HEADER_BYTES <= end:
            window = self.read(first, min(_BUFFERED_BYTES, end - first))
            content = np.frombuffer(window, dtype=np.uint8)
            last = len(content) - HEADER_BYTES
            places = np.flatnonzero(content[MAGIC_POSITION : MAGIC_POSITION + last + 1] == 2)
            prefix = content[places[:, None] + np.arange(LENGTH_PREFIX_BYTES)]
            base_offset = np.frombuffer(prefix[:, :8].tobytes(), dtype=">i8")
            length = np.frombuffer(prefix[:, 8:].tobytes(), dtype=">i4").astype(np.int64)
            is_possible = (base_offset >= self.log.start_offset) & (base_offset <= self.log.highest_offset)
            is_possible &= (length >= MIN_BATCH_LENGTH) & (first + places + length + LENGTH_PREFIX_BYTES <= end)
            for place in places[is_possible].tolist():
                if self._is_batch(first + place):
                    yield first + place
            first += last + 1

    def _leads_to(self, position: int, bound: int) -> bool:
        """Return whether the batches from `position` on lead to `bound`, over others that are damaged inside."""
        pieces: list[Batches] = []
        while True:
            position, refusal = self.collect(position, bound, pieces)
            if refusal is None:
                return True
            after = self._end_by_length(position)
            if after is None or after > bound or not (after == bound or self._is_batch(after)):
                return False
            position = after


def _columns(headers: BatchHeaders) -> Batches:
    batches = np.empty(len(headers), dtype=_BATCH)
    for name in _BATCH.names or ():
        batches[name] = getattr(headers, name)
    return batches


def _keep(batches: Batches, log: DamagedLog) -> Batches | None:
    """Leave out the batches whose offsets or leader epochs cannot be right."""
    is_inside = (batches["base_offset"] >= log.start_offset) & (batches["last_offset"] <= log.highest_offset)
    kept = batches[is_inside & _follows(batches, log.lineage)]
    _, first = np.unique(kept[["base_offset", "last_offset", "crc"]], return_index=True)
    kept = kept[np.sort(first)]
    for _ in range(_MOST_DAMAGES):
        is_wrong = kept["base_offset"][1:] <= kept["last_offset"][:-1]
        is_wrong |= kept["leader_epoch"][1:] < kept["leader_epoch"][:-1]
        if not is_wrong.any():
            return _without_unconfirmed(kept[~_lies_beside_its_gap(kept, log)], log)
        kept = np.delete(kept, _choose_wrong(kept, int(np.argmax(is_wrong))))
    return None


def _follows(batches: Batches, lineage: Sequence[EpochStart]) -> npt.NDArray[np.bool_]:
    """Whether each batch has the epoch of the lineage at its offset. If several do not, the lineage is damaged."""
    every = np.ones(len(batches), dtype=np.bool_)
    entries = filter_epochs(lineage)
    if not entries:
        return every
    epochs, starts = np.array(entries, dtype=np.int64).T
    at = np.searchsorted(starts, batches["base_offset"], side="right") - 1
    # The lineage may begin inside the segment, where the log starts.
    is_before = (at < 0) & (batches["leader_epoch"] <= epochs[0])
    follows = is_before | ((at >= 0) & (batches["leader_epoch"] == epochs[np.maximum(at, 0)]))
    follows |= batches["leader_epoch"] == _NO_LEADER_EPOCH
    return follows if np.count_nonzero(~follows) < 2 else every


def _choose_wrong(kept: Batches, first: int) -> list[int]:
    """Of two batches in a row that contradict each other, choose the one that its neighbours show to be wrong."""
    second = first + 1
    before = kept[first - 1] if first else None
    after = kept[second + 1] if second + 1 < len(kept) else None
    if kept["base_offset"][second] > kept["last_offset"][first]:  # a leader epoch falls
        epochs = kept["leader_epoch"]
        is_first_wrong = before is not None and before["leader_epoch"] == epochs[second]
        is_second_wrong = after is not None and after["leader_epoch"] == epochs[first]
    else:
        is_first_wrong = before is not None and _fits(before, kept[first], kept[second])
        is_second_wrong = after is not None and _fits(kept[first], kept[second], after)
    if is_first_wrong == is_second_wrong:
        return [first, second]
    return [first] if is_first_wrong else [second]


def _fits(before: np.void, batch: np.void, after: np.void) -> bool:
    """Whether the batch has as many offsets as there are between its neighbours."""
    return bool(after["base_offset"] - before["last_offset"] - 1 == batch["last_offset"] - batch["base_offset"] + 1)


def _lies_beside_its_gap(kept: Batches, log: DamagedLog) -> npt.NDArray[np.bool_]:
    after_log = -1 if log.end_offset is None else log.end_offset + 1
    gap_start = np.concatenate(([log.start_offset], kept["last_offset"][:-1] + 1))
    gap_end = np.concatenate((kept["base_offset"][1:], [after_log]))
    has_gaps = (kept["base_offset"] != gap_start) & (kept["last_offset"] + 1 != gap_end)
    return np.asarray(has_gaps & (gap_end - gap_start == kept["last_offset"] - kept["base_offset"] + 1), dtype=np.bool_)


def _without_unconfirmed(kept: Batches, log: DamagedLog) -> Batches | None:
    for _ in range(_MOST_DAMAGES):
        if not len(kept):
            return None
        ends = kept["position"] + kept["size_bytes"]
        is_first = np.concatenate(([kept["position"][0] != 0], kept["position"][1:] != ends[:-1]))
        follows = kept["base_offset"] == np.concatenate(([log.start_offset], kept["last_offset"][:-1] + 1))
        after_log = -1 if log.end_offset is None else log.end_offset + 1
        is_followed = kept["last_offset"] + 1 == np.concatenate((kept["base_offset"][1:], [after_log]))
        is_confirmed = follows | is_followed | np.isin(kept["last_offset"], log.named_offsets)
        if is_confirmed[is_first].all():
            return kept
        kept = kept[is_confirmed | ~is_first]
    return None


def _find_holes(
    kept: Batches, log: DamagedLog, refusals: list[ArchiveError], *, reason: Reason = Reason.HEADER_INVALID
) -> Iterator[Hole]:
    """Find the bytes without a sound batch. `reason` is that of holes without a refusal."""
    begins, ends = kept["position"], kept["position"] + kept["size_bytes"]
    before = np.concatenate(([0], ends[:-1]))
    for at in np.flatnonzero(begins != before).tolist():
        yield Hole(
            from_offset=int(kept["last_offset"][at - 1]) + 1 if at else log.start_offset,
            to_offset=int(kept["base_offset"][at]) - 1,
            position=int(before[at]),
            end_position=int(begins[at]),
            reason=_reason_between(int(before[at]), int(begins[at]), refusals, reason),
        )
    last, end = int(kept["last_offset"][-1]), int(ends[-1])
    if end != log.size_bytes or last < log.least_end_offset:
        is_cut = end == log.size_bytes
        reason = Reason.LOG_TRUNCATED if is_cut else _reason_between(end, log.size_bytes, refusals, reason)
        yield Hole(
            from_offset=last + 1,
            to_offset=log.end_offset,
            position=end,
            end_position=log.size_bytes,
            reason=reason,
        )


def _reason_between(first: int, end: int, refusals: list[ArchiveError], otherwise: Reason) -> Reason:
    """The reason of the first damage there; without one, a batch of other offsets or epochs was left out."""
    return next((wrong.reason for wrong in refusals if first <= wrong.position < end), otherwise)
