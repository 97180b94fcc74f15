"""Read which segments deepen_indexes indexes again, and refuse topics that the warehouse does not know."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coldlog.errors import UsageError
from coldlog.model.states import IndexDepth
from coldlog.runtime.settings import Settings
from coldlog.runtime.timestamps import timestamp_from_text
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.known_topics import unknown_text
from coldlog.tables.table_rows import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepenedPart:
    """Which segments to index again: those that are indexed at a lesser depth than `depth`, of topics that match one of
    the `topics` (with * and ?), and that may have a record between the times, both inclusive."""

    depth: IndexDepth
    topics: tuple[str, ...]
    from_timestamp_ms: int | None = None
    to_timestamp_ms: int | None = None


def read_deepened_part(settings: Settings, arguments: argparse.Namespace) -> DeepenedPart:
    """Read the options of deepen_indexes; wrong options raise `UsageError`."""
    topics = _names(arguments.topics or settings.build.deepen)
    if not topics:
        raise UsageError("which topics? give --topics with names or patterns, or set build.deepen")
    times = (arguments.since, arguments.until)
    since, until = (None if text is None else timestamp_from_text(text) for text in times)
    if since is not None and until is not None and since > until:
        raise UsageError(f"--from {arguments.since} is after --to {arguments.until}")
    return DeepenedPart(
        depth=IndexDepth(arguments.depth), topics=topics, from_timestamp_ms=since, to_timestamp_ms=until
    )


def require_known_topics(settings: Settings, topics: str) -> None:
    """Raise `UsageError` for a name, or a pattern with * and ?, that matches no topic of the warehouse."""
    unmatched, known = _names(topics), set[str]()
    # Segments that no run has published yet are in the second table only, which may be large.
    for table in (PARTITION_METADATA, SEGMENTS):
        known |= {row["topic"] for row in read_table(settings, table, ("topic",))}
        unmatched = tuple(name for name in unmatched if not any(fnmatchcase(topic, name) for topic in known))
        if not unmatched:
            return
    raise UsageError(f"the warehouse {settings.warehouse_uri} does not know {unknown_text(unmatched[0], None, known)}")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
