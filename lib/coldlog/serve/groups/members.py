"""A member of a consumer group, what it asks, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks. `instance_id` is group.instance.id, of static members."""

    member_id: str
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup. `protocols` are the assignors that the member knows, with its subscription for each."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: Mapping[str, bytes]
    must_return: bool = False
    """A new member gets an id first, and joins when it comes back with it (from version 4 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a JoinGroup. Only the leader gets the members: id, instance id, subscription."""

    error: ErrorCode = ErrorCode.none
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and how its requests that wait are answered."""

    member_id: str
    asked: JoinRequest
    deadline: float
    """When its session ends, unless it waits for the others."""
    assignment: bytes = b""
    joining: Callable[[Joined], None] | None = None
    syncing: Callable[[Synced], None] | None = None

    def answer_join(self, answer: Joined) -> None:
        """Answer the JoinGroup that waits, if one does."""
        waiting, self.joining = self.joining, None
        if waiting is not None:
            waiting(answer)

    def answer_sync(self, answer: Synced) -> None:
        """Answer the SyncGroup that waits, if one does."""
        waiting, self.syncing = self.syncing, None
        if waiting is not None:
            waiting(answer)
