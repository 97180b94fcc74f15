"""Test that endpoints whose warehouse is in a bucket keep each other's committed offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable

from coldlog.serve.groups.group import CommittedOffset
from servers.committing_endpoints import GROUP, Endpoints, expire, held, run_endpoints
from servers.s3_proxy import Fault, Request, S3Proxy
from servers.s3_server import Bucket

_DAY_MS = 24 * 3_600_000
_MOST_REQUESTS = 11
_FIRST, _SECOND, _THIRD = (("archive.orders", partition) for partition in range(3))


def _commit(offset: int, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_ms=committed_ms)


def _version(request: Request) -> int | None:
    """The version of the table that is to be put."""
    name = request.path.rpartition("/")[2]
    return int(name.removesuffix(".json")) if request.method == "PUT" and name.endswith(".json") else None


async def _at_once(bucket: Bucket, s3_access: S3Proxy, first: Awaitable[None], second: Awaitable[None]) -> list[int]:
    """Let the objects of the first change appear when the second one puts its version; return the versions that the
    second one put.

    The first one is made before, and its objects are taken away: a look for newer versions before the put finds none.
    """
    before = bucket.keys()
    await first
    objects = {
        key: bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read() for key in bucket.keys() - before
    }
    bucket.delete(*objects)
    puts: list[int] = []

    def appear(request: Request) -> bool:
        version = _version(request)
        if version is not None:
            if not puts:
                bucket.put(objects)
            puts.append(version)
        return False

    s3_access.strikes, s3_access.faults = appear, [Fault()]
    await second
    return puts


def test_endpoints_that_commit_in_turn_and_at_once_lose_nothing(bucket: Bucket, s3_access: S3Proxy) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.start(), await endpoints.start()
        for offset, (endpoint, place) in enumerate([(one, _FIRST), (other, _SECOND), (one, _SECOND), (other, _FIRST)]):
            await endpoint.change_offsets(GROUP, {place: _commit(offset)})
        assert await endpoints.kept() == {_FIRST: _commit(3), _SECOND: _commit(2)}
        puts = await _at_once(
            bucket,
            s3_access,
            other.change_offsets(GROUP, {_FIRST: _commit(11), _SECOND: _commit(12)}),
            one.change_offsets(GROUP, {_SECOND: _commit(21), _THIRD: _commit(22)}),
        )
        assert puts == [5, 6], "the first put found its version there"
        assert await endpoints.kept() == {_FIRST: _commit(11), _SECOND: _commit(21), _THIRD: _commit(22)}

    run_endpoints(bucket.uri("warehouse"), steps)


def test_an_offset_that_another_endpoint_commits_while_it_expires_is_kept(bucket: Bucket, s3_access: S3Proxy) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.start(), await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7), _SECOND: _commit(8)})
        committing = other.change_offsets(GROUP, {_FIRST: _commit(7, 5 * _DAY_MS)})
        assert await _at_once(bucket, s3_access, committing, expire(one, 4 * _DAY_MS)) == [2, 3]
        assert await endpoints.kept() == held(one) == {_FIRST: _commit(7, 5 * _DAY_MS)}
        s3_access.begin()
        await other.change_offsets(GROUP, {_FIRST: _commit(7, 5 * _DAY_MS + 1)})
        assert {each.method for each in s3_access.requests} == {"GET", "HEAD"}, "unchanged, it is not written again"

    run_endpoints(bucket.uri("warehouse"), steps)


def _asked(s3_access: S3Proxy) -> Counter[str]:
    """What was asked of the store since the last look: objects by kind, and listings by their first page."""
    kinds: Counter[str] = Counter()
    for request in s3_access.requests:
        kind = "listing" if request.is_listing else f"{request.method} {request.path.rpartition('.')[2]}"
        kinds[kind] += "continuation-token" not in request.query
    s3_access.forget()
    return kinds


def test_a_commit_reads_only_the_versions_after_the_last_one(bucket: Bucket, s3_access: S3Proxy) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.start(), await endpoints.start()
        asked: list[Counter[str]] = []
        for offset in range(8):
            s3_access.forget()
            await one.change_offsets(GROUP, {_FIRST: _commit(offset)})
            asked.append(_asked(s3_access))
        assert asked[-1] == asked[3]
        assert asked[-1]["GET json"] <= 2, "of the version that it has written"
        assert asked[-1].total() <= _MOST_REQUESTS
        await other.change_offsets(GROUP, {_SECOND: _commit(1)})
        s3_access.forget()
        await one.change_offsets(GROUP, {_FIRST: _commit(8)})
        assert _asked(s3_access)["GET json"] <= 4, "of that of the other endpoint, and its own"
        assert await endpoints.kept() == {_FIRST: _commit(8), _SECOND: _commit(1)}

    run_endpoints(bucket.uri("warehouse"), steps)


def test_commits_go_on_after_the_table_was_removed(bucket: Bucket) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        for offset in range(2):
            await one.change_offsets(GROUP, {_FIRST: _commit(offset)})
        kept = bucket.keys()
        bucket.delete(*(key for key in kept if "/committed_offsets/" in key))
        other = await endpoints.start()
        for offset in range(3):
            await other.change_offsets(GROUP, {_SECOND: _commit(offset)})
        await one.change_offsets(GROUP, {_FIRST: _commit(2)})
        assert await endpoints.kept() == {_FIRST: _commit(2), _SECOND: _commit(2)}

    run_endpoints(bucket.uri("warehouse"), steps)
