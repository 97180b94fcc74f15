"""Hold many requests and their answers as arrays, one entry per request.

The requests of one partition are answered together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.index_rows import NOTHING, Int64s
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.model.list_offsets import NEWEST_VERSION, OLDEST_VERSION, UNKNOWN_EPOCH, ErrorCode, Route, SpecialTimestamp

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
ROUTES = (Route.METADATA, Route.REMOTE_THEN_LOCAL, Route.LOCAL_ONLY)
METADATA, REMOTE_THEN_LOCAL, LOCAL_ONLY = range(3)
"""Indices into `ROUTES`."""
_NO_OFFSET = -1
NOT_EXACT, EXACT = range(2)
"""Values of `Answers.exactness`; -1 is unknown."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Requests as arrays, one entry per request."""

    topics: pa.Array
    partitions: Int64s
    timestamps_ms: Int64s
    leader_epochs: Int64s
    is_committed: Flags
    versions: Int64s
    is_invalid: Flags


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers as arrays, one entry per request. Where there is no value, `timestamps_ms` is NOTHING, the others are -1.
    `routes` are indices into `ROUTES`. If an answer is not exact, `passed_from` and `passed_to` are the first and last
    offset of the range that may hold an earlier match. `damages` were found on the way; one may be there repeatedly."""

    errors: Int64s
    offsets: Int64s
    timestamps_ms: Int64s
    leader_epochs: Int64s
    routes: Int64s
    local_starts: Int64s
    exactness: Int64s
    passed_from: Int64s
    passed_to: Int64s
    damages: list[DamagedSegment] = field(default_factory=list)

    @staticmethod
    def nothing(count: int, error: ErrorCode = ErrorCode.NONE) -> Answers:
        """Return answers without an offset."""
        # The columns are rows of one array: a single lookup spends much of its time in making arrays.
        columns = np.full((len(ANSWER_COLUMNS), count), -1, dtype=np.int64)
        columns[0], columns[2] = error, NOTHING
        return Answers(*columns)

    def put(self, where: Indices | Flags, others: Answers) -> None:
        """Replace the answers at these places by others."""
        for name in ANSWER_COLUMNS:
            getattr(self, name)[where] = getattr(others, name)
        self.damages.extend(others.damages)

    def take(self, where: Indices | Flags) -> Answers:
        """Return the answers at these places."""
        taken = Answers(*(getattr(self, name)[where] for name in ANSWER_COLUMNS))
        taken.damages.extend(self.damages)
        return taken

    def copy(self) -> Answers:
        """Return an independent copy."""
        copied = Answers(*(getattr(self, name).copy() for name in ANSWER_COLUMNS))
        copied.damages.extend(self.damages)
        return copied

    def have(self, error: ErrorCode) -> Flags:
        """Flag the answers with this error."""
        flags: Flags = self.errors == int(error)
        return flags

    def refuse(self, where: Indices | Flags, error: ErrorCode) -> None:
        """Remove the offset at these places and set the error; the route stays."""
        self.errors[where] = error
        self.offsets[where] = _NO_OFFSET
        self.timestamps_ms[where] = NOTHING
        self.leader_epochs[where] = UNKNOWN_EPOCH

    def found(self, at: int) -> FoundOffset | None:
        """Return the offset at this place; None if there is none."""
        if self.offsets[at] == _NO_OFFSET:
            return None
        return FoundOffset(
            offset=int(self.offsets[at]),
            timestamp_ms=int(self.timestamps_ms[at]),
            leader_epoch=int(self.leader_epochs[at]),
            is_exact=None if self.exactness[at] < 0 else bool(self.exactness[at] == EXACT),
        )

    def error_text(self, at: int) -> str:
        """Return the error at this place, with the damage that was found."""
        name = ErrorCode(int(self.errors[at])).name
        if not self.damages or name != ErrorCode.CORRUPT_MESSAGE.name:
            return name
        return (
            f"{name}: {self.damages[0].text}; the next run of run_pipeline reads that log completely if the table "
            "damage_reports names the segment; then coldlog problems shows what is lost"
        )

    def find(self, at: int, found: FoundOffset) -> None:
        """Set the offset at this place."""
        self.errors[at] = ErrorCode.NONE
        self.offsets[at] = found.offset
        self.timestamps_ms[at] = found.timestamp_ms
        self.leader_epochs[at] = found.leader_epoch


ANSWER_COLUMNS = tuple(each.name for each in fields(Answers) if each.name != "damages")
"""The fields with one entry per request."""


@dataclass(frozen=True, slots=True)
class PartitionQuestions:
    """The requests of one partition, by ascending timestamp."""

    timestamps_ms: Int64s
    leader_epochs: Int64s
    is_committed: Flags
    versions: Int64s

    @staticmethod
    def at(questions: Questions, where: Indices) -> PartitionQuestions:
        return PartitionQuestions(
            questions.timestamps_ms[where],
            questions.leader_epochs[where],
            questions.is_committed[where],
            questions.versions[where],
        )

    @staticmethod
    def one(
        timestamp_ms: int,
        *,
        is_committed: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        version: int = NEWEST_VERSION,
    ) -> PartitionQuestions:
        """Make one request."""
        return PartitionQuestions(
            np.array([timestamp_ms]), np.array([leader_epoch]), np.array([is_committed]), np.array([version])
        )

    @property
    def count(self) -> int:
        return len(self.timestamps_ms)

    @property
    def specials(self) -> list[SpecialTimestamp]:
        """Return the special timestamps of these requests; other negative timestamps were refused before."""
        negative = self.timestamps_ms[: np.searchsorted(self.timestamps_ms, 0)]
        return [SpecialTimestamp(number) for number in np.unique(negative).tolist()]

    def asks(self, special: SpecialTimestamp) -> Flags:
        # NumPy compares with a plain number in a tenth of the time that a member of an enum takes.
        flags: Flags = self.timestamps_ms == int(special)
        return flags


def is_unsupported(questions: Questions) -> Flags:
    """Flag negative timestamps that are not special, or not in the request's version, and unknown versions."""
    since = np.full(-min(SpecialTimestamp) + 1, 0)
    for special in SpecialTimestamp:
        since[-special] = special.since_version
    timestamps_ms, versions = questions.timestamps_ms, questions.versions
    is_special = (timestamps_ms < 0) & (timestamps_ms >= min(SpecialTimestamp))
    is_too_old = is_special & (versions < since[np.where(is_special, -timestamps_ms, 0)])
    is_version = (versions >= OLDEST_VERSION) & (versions <= NEWEST_VERSION)
    flags: Flags = (timestamps_ms < min(SpecialTimestamp)) | is_too_old | ~is_version
    return flags


@dataclass(frozen=True, slots=True)
class AskedPartitions:
    """The partitions of requests, by topic and number. `where` has the requests of all, those of one partition by
    ascending timestamp; they begin at its place in `starts`, which has the end of the last one too."""

    topics: list[str]
    numbers: list[int]
    starts: Int64s
    where: Indices

    @staticmethod
    def of(questions: Questions, among: Indices) -> AskedPartitions:
        """Put these requests in order."""
        named = questions.topics.take(pa.array(among)).dictionary_encode()
        names = np.array(named.dictionary.to_pylist(), dtype=np.object_)
        ranks = np.empty(len(names), dtype=np.int64)
        ranks[np.argsort(names)] = np.arange(len(names))
        codes, partitions = ranks[named.indices.to_numpy(zero_copy_only=False)], questions.partitions[among]
        order = np.lexsort((questions.timestamps_ms[among], partitions, codes))
        codes, partitions = codes[order], partitions[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (codes[1:] != codes[:-1]) | (partitions[1:] != partitions[:-1])
        starts = np.flatnonzero(is_first)
        topics: list[str] = np.sort(names)[codes[starts]].tolist()
        return AskedPartitions(topics, partitions[starts].tolist(), np.append(starts, len(order)), among[order])

    def __len__(self) -> int:
        return len(self.topics)

    def requests_of(self, number: int) -> Indices:
        """Return the requests of a partition."""
        return self.where[self.starts[number] : self.starts[number + 1]]


def _iter_bounds(is_new: Flags, count: int) -> Iterator[tuple[int, int]]:
    if count:
        starts = [0, *(np.flatnonzero(is_new) + 1).tolist()]
        yield from zip(starts, [*starts[1:], count], strict=True)


def iter_runs(numbers: Int64s) -> Iterator[tuple[int, int, int]]:
    for first, last in _iter_bounds(numbers[1:] != numbers[:-1], len(numbers)):
        yield int(numbers[first]), first, last


def is_repeated(request_ids: pa.Array, topics: pa.Array, partitions: pa.Array) -> Flags:
    """Flag entries whose partition is named twice in their request. Without a request id an entry is a request."""
    rows = pa.table({"request_id": request_ids, "topic": topics, "partition": partitions})
    if request_ids.null_count == len(request_ids):
        return np.zeros(len(request_ids), dtype=np.bool_)
    numbered = rows.append_column("at", pa.array(np.arange(rows.num_rows))).filter(pc.is_valid(rows["request_id"]))
    keys = ["request_id", "topic", "partition"]
    counts = numbered.group_by(keys).aggregate([("at", "count"), ("at", "list")])
    repeated = counts.filter(pc.greater(counts["at_count"], 1))["at_list"]
    flags = np.zeros(rows.num_rows, dtype=np.bool_)
    flags[pc.list_flatten(repeated).to_numpy().astype(np.intp)] = True
    return flags
