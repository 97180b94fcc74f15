"""Keep the reports of damage that readers found, from the reader to the build that reads the segments completely.

A report names the build of its segment that the reader used. Once the segment has another build, the report
is void. So a build that is killed before it clears its reports does no work twice, and a wrong report costs one read.
"""

from __future__ import annotations

from collections.abc import Sequence

from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.delta.small_table import Row, SmallTable


def read_damage_reports(uri: str) -> list[Row]:
    """Read the reports of the warehouse; none if it has no table of them."""
    return _table(uri).read()


def add_damage_reports(uri: str, reports: Sequence[Row]) -> None:
    """Add reports, without those of segments that were reported before from the same build."""

    def with_new(stored: list[Row]) -> list[Row]:
        return list({_key(row): row for row in [*reports, *stored]}.values())

    _table(uri).change(with_new)


def clear_damage_reports(uri: str, reports: Sequence[Row]) -> None:
    """Remove these reports. Those that were made meanwhile stay."""
    done = {_key(row) for row in reports}
    _table(uri).change(lambda stored: [row for row in stored if _key(row) not in done])


def _table(uri: str) -> SmallTable:
    return SmallTable(uri=uri, table=DAMAGE_REPORTS)


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in DAMAGE_REPORTS.key)
