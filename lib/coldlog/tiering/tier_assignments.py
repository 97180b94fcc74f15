"""Read for which partitions this host is the leader, and for which a follower.

The file is a CSV file `topic,partition,role` with a header; `role` is `leader` or `follower`. If a file is given, this
host ignores the partitions that it does not name.

Refused (`UsageError`): a file that cannot be read, a missing column, a partition named twice, another role.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from coldlog.errors import UsageError


class Role(StrEnum):
    """The role of this host for a partition. A follower only retrieves which offsets the leader has tiered."""

    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class Assignments:
    """The roles of this host by topic and partition. None: it leads all partitions."""

    roles: Mapping[tuple[str, int], Role] | None = None

    def is_leader(self, topic: str, partition: int) -> bool:
        """True if this host copies and expires the partition."""
        return self.roles is None or self.roles.get((topic, partition)) is Role.LEADER

    def is_assigned(self, topic: str, partition: int) -> bool:
        """True if this host leads or follows the partition."""
        return self.roles is None or (topic, partition) in self.roles

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the roles from a CSV file."""
        roles: dict[tuple[str, int], Role] = {}
        for number, row in read_csv(path, ("topic", "partition", "role"), "tier.assignments"):
            try:
                place, role = (row["topic"], int(row["partition"])), Role(row["role"].strip())
            except ValueError as wrong:
                raise UsageError(
                    f"{path}, line {number}: expected a partition number and the role leader or follower: {row}"
                ) from wrong
            if place in roles:
                raise UsageError(f"{path}, line {number}: {place[0]}-{place[1]} is named twice")
            roles[place] = role
        return cls(roles=roles)


LEADER_OF_ALL = Assignments()


def read_csv(path: str, columns: tuple[str, ...], setting: str) -> list[tuple[int, dict[str, str]]]:
    """Read these columns of a CSV file with a header. Return each row with its line number."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: the first line must name {','.join(columns)}; missing: {missing}")
            return [(reader.line_num, {name: row[name] or "" for name in columns}) for row in reader]
    except OSError as unreadable:
        raise UsageError(f"{setting} cannot be read: {path}: {unreadable.strerror}") from unreadable
    except UnicodeDecodeError as unreadable:
        raise UsageError(f"{path}: not UTF-8 text: {unreadable.reason} at byte {unreadable.start}") from unreadable
