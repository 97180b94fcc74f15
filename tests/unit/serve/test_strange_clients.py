"""What one client sends must not cost others more than its own connection: waits, lines, entries."""

from __future__ import annotations

import asyncio
import io

import pytest

from coldlog.runtime.console import Console
from coldlog.serve.answers.offered import VERSIONS
from coldlog.serve.line_limit import LineLimit
from coldlog.serve.messages import MalformedRequestError, read_request
from coldlog.serve.presence import Presence


def test_a_wait_ends_when_the_client_goes_and_none_begins_after_it() -> None:
    async def run() -> None:
        presence = Presence()

        async def wait() -> None:
            with presence.waiting():
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        presence.end()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ConnectionResetError), presence.waiting():
            pass

    asyncio.run(run())


def test_what_does_not_wait_goes_on_when_the_client_goes() -> None:
    async def run() -> str:
        presence = Presence()
        with presence.waiting():
            pass
        presence.end()
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(run()) == "done"


def test_ten_lines_a_minute_are_written_and_the_next_minute_says_how_many_were_not() -> None:
    out, now = io.StringIO(), [0.0]
    lines = LineLimit(Console(progress=out), lambda: now[0])
    for number in range(25):
        lines.warn(f"line {number}")
    assert out.getvalue().splitlines() == [f"line {number}" for number in range(10)]
    now[0] = 60.0
    lines.warn("a line")
    lines.warn("another")
    assert out.getvalue().splitlines()[10:] == ["a line (15 more such lines were left out before)", "another"]


@pytest.mark.parametrize(("topics", "partitions", "is_read"), [(10, 9_999, True), (10, 10_000, False)])
def test_entries_of_all_arrays_count_together(topics: int, partitions: int, *, is_read: bool) -> None:
    """OffsetFetch 1: topics with partitions, four bytes each."""
    topic = b"\0\1a" + partitions.to_bytes(4, "big") + b"\0\0\0\0" * partitions
    content = b"\0\x09\0\1\0\0\0\7\xff\xff" + b"\0\1g" + topics.to_bytes(4, "big") + topic * topics
    if is_read:
        assert len(read_request(content, VERSIONS).body.topics) == topics
    else:
        with pytest.raises(MalformedRequestError):
            read_request(content, VERSIONS)
