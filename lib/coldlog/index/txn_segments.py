"""Find for which offsets a segment is the next one that may hold aborted transactions.

Within a leader epoch, the walk is that of Kafka's RemoteLogMetadataCache.nextSegmentWithTxnIndex: from the segment that
holds an offset to the segment that holds the offset after its end, until a segment has a transaction index or none
follows. Over the whole partition, the walk continues with the next epochs, as Kafka's caller does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coldlog.index.leader_epoch_lineage import EpochStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEpochs:
    """The offsets that a segment serves, and the starts of its leader epochs.

    `txn_index_empty` is None if that is not known.
    """

    segment_id: str
    start_offset: int
    end_offset: int
    served_from_offset: int
    served_to_offset: int
    leader_epochs: Sequence[EpochStart]
    txn_index_empty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnSegment:
    """A segment that may hold aborted transactions, with one of its leader epochs; `txn_segments` explains the columns
    of the same names."""

    leader_epoch: int
    epoch_from_offset: int
    log_from_offset: int
    to_offset: int
    segment_id: str
    start_offset: int
    end_offset: int
    is_certain: bool


@dataclass(slots=True)
class _Run:
    """Offsets from which a walk meets no segment that may hold aborts before the current one."""

    from_offset: int
    to_offset: int
    is_ended: bool
    """The last segment of the run may hold aborts, so the next segment begins another."""


def find_txn_segments(served: Iterable[ServedEpochs]) -> Iterator[TxnSegment]:
    """Iterate over the segments of one incarnation that may hold aborts, once for each leader epoch that they serve.

    The offsets that the segments serve must not overlap.
    """
    ordered = sorted(served, key=lambda segment: segment.served_from_offset)
    of_epochs: dict[int, _Run] = {}
    of_log: _Run | None = None
    for segment in ordered:
        may_hold = not segment.txn_index_empty
        for epoch, from_offset, to_offset in _served_epochs(segment):
            run = of_epochs.get(epoch)
            # In a leader epoch, a walk ends at missing offsets.
            is_next = run is not None and run.to_offset + 1 == from_offset and not run.is_ended
            epoch_from = run.from_offset if run is not None and is_next else from_offset
            of_epochs[epoch] = _Run(epoch_from, to_offset, may_hold)
            if of_log is None:
                log_from = from_offset
            else:
                # A search over the whole log passes missing offsets.
                log_from = of_log.to_offset + 1 if of_log.is_ended else of_log.from_offset
            of_log = _Run(log_from, to_offset, may_hold)
            if may_hold:
                yield TxnSegment(
                    leader_epoch=epoch,
                    epoch_from_offset=epoch_from,
                    log_from_offset=log_from,
                    to_offset=to_offset,
                    segment_id=segment.segment_id,
                    start_offset=segment.start_offset,
                    end_offset=segment.end_offset,
                    is_certain=segment.txn_index_empty is False,
                )


def _served_epochs(segment: ServedEpochs) -> Iterator[tuple[int, int, int]]:
    """Iterate over leader epochs with the first and last offset that the segment serves of each."""
    first, last = segment.served_from_offset, segment.served_to_offset
    epochs = segment.leader_epochs
    for at, (epoch, start_offset) in enumerate(epochs):
        from_offset = first if at == 0 else max(start_offset, first)
        to_offset = min(epochs[at + 1][1] - 1, last) if at + 1 < len(epochs) else last
        if from_offset <= to_offset:
            yield epoch, from_offset, to_offset
