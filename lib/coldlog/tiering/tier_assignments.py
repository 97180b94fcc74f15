"""tier_assignments: of which partitions is this host the leader, and of which a follower?

A CSV file `topic,partition,role` with a header, where `role` is `leader` or `follower`. Once a file is given, what it
does not name is not this host's.

Refused (`UsageError`): a file that cannot be read, columns that lack, a partition named twice, another role.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from coldlog.errors import UsageError


class Role(StrEnum):
    """Of this host, for a partition: a follower only retrieves what the leader has tiered."""

    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class Assignments:
    """The roles of this host by topic and partition; None: it is the leader of all."""

    roles: Mapping[tuple[str, int], Role] | None = None

    def is_leader(self, topic: str, partition: int) -> bool:
        """It copies and expires."""
        return self.roles is None or self.roles.get((topic, partition)) is Role.LEADER

    def is_assigned(self, topic: str, partition: int) -> bool:
        """It has to do with it."""
        return self.roles is None or (topic, partition) in self.roles

    @classmethod
    def read(cls, path: str) -> Self:
        """What a file says."""
        roles: dict[tuple[str, int], Role] = {}
        for number, row in read_csv(path, ("topic", "partition", "role"), "tier.assignments"):
            try:
                place, role = (row["topic"], int(row["partition"])), Role(row["role"].strip())
            except ValueError as wrong:
                raise UsageError(
                    f"{path}, line {number}: a number, and leader or follower, are expected: {row}"
                ) from wrong
            if place in roles:
                raise UsageError(f"{path}, line {number}: {place[0]}-{place[1]} is named twice")
            roles[place] = role
        return cls(roles=roles)


LEADER_OF_ALL = Assignments()


def read_csv(path: str, columns: tuple[str, ...], setting: str) -> list[tuple[int, dict[str, str]]]:
    """The rows of a file with a header, with their line numbers; these columns of them."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: the first line must name {','.join(columns)}; {missing} lack")
            return [(reader.line_num, {name: row[name] or "" for name in columns}) for row in reader]
    except OSError as unreadable:
        raise UsageError(f"{setting} cannot be read: {path}: {unreadable.strerror}") from unreadable
    except UnicodeDecodeError as unreadable:
        raise UsageError(f"{path}: not UTF-8 text: {unreadable.reason} at byte {unreadable.start}") from unreadable
