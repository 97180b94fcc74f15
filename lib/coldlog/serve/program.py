"""Open the endpoint of the settings, and serve until a signal ends it; `command_line` has its arguments."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address
from uuid import uuid4

from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.errors import ColdlogError, UsageError
from coldlog.formats.kafka.indexed_batches import load_check
from coldlog.lookups.damage.reported_damage import reports_to, wait_for_reports
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.layout_names import LayoutName
from coldlog.model.states import CommittedOffsets, OnGap, ServeOnGap
from coldlog.records.fetch.opened_source import open_source, pool_options, shared_allowances
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.runtime.settings import ServeSettings, Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.groups.coordinator import MOST_SESSION_S, Coordinator
from coldlog.serve.groups.offset_table import OffsetTable
from coldlog.serve.groups.shared_groups import SharedGroups
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import Node
from coldlog.serve.process_end import close_in_time, limit_end
from coldlog.serve.read_ahead import ReadAheadBytes
from coldlog.serve.read_quota import ReadQuota
from coldlog.serve.security.session import mechanisms
from coldlog.serve.security.users import Users, read_users, write_user
from coldlog.serve.server import Limits, Server
from coldlog.serve.telemetry.gauges import observe
from coldlog.serve.telemetry.metrics import Metrics
from coldlog.serve.telemetry.metrics_server import start_metrics_server
from coldlog.serve.threads import Threads
from coldlog.tiering.system_clock import SystemClock

_Address = tuple[str, int]
_REPORTS_S = 1.0
"""So long the end waits for reports of damage that are being written."""


def serve(job: PlainJob) -> int:
    """Answer until a signal ends it."""
    settings, arguments = job.settings, job.arguments
    if arguments.hash_password is not None:
        job.console.result(write_user(arguments.hash_password, sys.stdin.readline().rstrip("\r\n")))
        return 0
    host, port = parse_address(arguments.listen or settings.serve.listen)
    advertised = arguments.advertise or settings.serve.advertise
    metrics = arguments.metrics or settings.serve.metrics
    metrics_at = parse_address(metrics) if metrics else None
    security = open_security(settings.serve, host)
    if not settings.serve.allow_remote:
        _refuse_remote(host, metrics_at, is_secure=security.tls is not None and security.users is not None)
    quota = ReadQuota(pool_options(settings).quota, SystemClock(), shared_allowances(settings, SystemClock()))
    reports_to(settings.warehouse_uri).tell = job.console.warn
    view = open_view(settings, quota)
    advertised_at = parse_address(advertised) if advertised else None
    try:
        asyncio.run(_run(job, view, quota, security, (host, port), advertised_at, metrics_at))
    finally:
        close_in_time(quota.close)  # Without it, what is reserved passes unused.
        wait_for_reports(_REPORTS_S)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What clients must do to be answered."""

    tls: ssl.SSLContext | None
    users: Users | None
    mechanisms: tuple[str, ...]


def open_security(settings: ServeSettings, host: str) -> Security:
    """Read certificate and users."""
    tls = None
    if settings.tls_certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(settings.tls_certificate, settings.tls_key)
        except (OSError, ValueError) as unfit:
            raise UsageError(f"the certificate cannot be read from {settings.tls_certificate}: {unfit}") from unfit
    return Security(
        tls=tls,
        users=read_users(settings.users) if settings.users is not None else None,
        mechanisms=mechanisms(is_private=tls is not None or is_loopback(host)),
    )


def _refuse_remote(host: str, metrics_at: _Address | None, *, is_secure: bool) -> None:
    if not is_secure and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines; give serve.tls_certificate and serve.users, or "
            "--set serve.allow_remote=true if the network is closed"
        )
    if metrics_at is not None and not is_loopback(metrics_at[0]):
        raise UsageError(
            f"{metrics_at[0]} can be reached from other machines, and the metrics name topics; give "
            "--set serve.allow_remote=true if the network is closed"
        )


def open_view(settings: Settings, quota: ReadQuota) -> ArchiveView:
    """Open the warehouse and the archive of the settings. Lookups read the archive within the quota; a fetch is charged
    when it is planned."""
    open_layout = layout_opener(settings)
    skips_gaps = settings.serve.on_gap is ServeOnGap.SKIP
    options = LookupOptions(
        on_gap=OnGap.ANSWER if skips_gaps else OnGap.REFUSE,
        broker_compatible=settings.lookup.broker_compatible,
        older_incarnations=True,
        report_damage=settings.warehouse.report_damage,
        batches=BatchReader(
            open_layout=lambda: PacedLayout(layout=open_layout(), pace=quota), limits=decode_limits(settings)
        ),
    )
    source = open_source(settings)
    return ArchiveView(
        settings.warehouse_uri, source, options, prefix=settings.serve.topic_prefix or "", skips_gaps=skips_gaps
    )


def read_ahead_bytes(settings: Settings) -> int:
    """Return how much may be read ahead. Of a folder nothing, because the kernel does it. Of Aiven's layout nothing:
    slices share a chunk, which each thread would read by itself."""
    is_read_ahead = is_s3_uri(settings.archive_uri) and settings.archive.layout is not LayoutName.AIVEN
    return settings.serve.read_ahead_bytes if is_read_ahead else 0


def parse_address(text: str) -> tuple[str, int]:
    """Split host:port; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"not an address host:port: {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _run(
    job: PlainJob,
    view: ArchiveView,
    quota: ReadQuota,
    security: Security,
    listen: _Address,
    advertised: _Address | None,
    metrics_at: _Address | None,
) -> None:
    settings = job.settings.serve
    with (
        closing(Threads("fetch", job.settings.fetch.threads, job.settings.fetch.max_pending)) as fetch_threads,
        closing(Threads("lookup", settings.lookup_threads, settings.lookup_max_pending)) as lookup_threads,
        closing(Threads("tables", job.settings.fetch.threads)) as table_threads,
        closing(Threads("send", job.settings.fetch.threads)) as send_threads,
        closing(Threads("offsets", 1)) as offset_threads,
    ):
        groups, shared = await _open_groups(job, offset_threads)
        context = Context(
            view=view,
            host=advertised[0] if advertised else listen[0],
            port=advertised[1] if advertised else listen[1],
            fetch_threads=fetch_threads,
            lookup_threads=lookup_threads,
            table_threads=table_threads,
            send_threads=send_threads,
            console=job.console,
            timeout_ms=job.settings.list_offsets.timeout_ms,
            request_seconds=settings.request_seconds,
            groups=groups,
            metrics=Metrics(),
            quota=quota,
            is_local=not is_s3_uri(job.settings.archive_uri),
            read_ahead=ReadAheadBytes(read_ahead_bytes(job.settings)),
            users=security.users,
            mechanisms=security.mechanisms,
        )
        if shared is not None and settings.node_id is not None:
            context.node_id, context.shared = settings.node_id, shared
        limits = Limits(
            max_request_bytes=settings.max_request_bytes,
            max_connections=settings.max_connections,
            idle_seconds=settings.idle_seconds,
        )
        server, ended = Server(context, limits), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: follow_settings(job, context))
        observe(context, lambda: server.connections)
        if metrics_at:
            metrics_port = await _listen(
                metrics_at, "serve.metrics", lambda: start_metrics_server(context, *metrics_at)
            )
            job.console.note(f"metrics at http://{metrics_at[0]}:{metrics_port}/metrics")
        port = await _listen(listen, "--listen", lambda: server.start(*listen, security.tls))
        if not advertised:
            context.port = port
        keeping = await _join_nodes(context, settings)
        job.console.note(f"listening on {listen[0]}:{port}; clients are told {context.host}:{context.port}")
        # It is ready before this has ended. Without it, the first fetch would wait for it.
        threading.Thread(target=load_check, name="load", daemon=True).start()
        refreshing = asyncio.create_task(_refresh(context, settings))
        await ended.wait()
        limit_end(settings.drain_seconds)
        job.console.note("stopping")
        refreshing.cancel()
        leaving = asyncio.create_task(_leave_nodes(context, keeping))
        await server.stop(settings.drain_seconds)
        await asyncio.wait([leaving], timeout=settings.drain_seconds)


def follow_settings(job: PlainJob, context: Context) -> None:
    """Go on with users, timeout, quota, pools and the memory for reading ahead as the settings have them now; if these
    are unfit, as before."""
    arguments = job.arguments
    try:
        settings = load_settings(arguments.env, arguments.set, config=arguments.config)
        users = read_users(settings.serve.users) if settings.serve.users is not None else None
        if (users is None) != (context.users is None):
            raise UsageError("serve.users cannot be added or removed while the endpoint runs; start it again")
    except ColdlogError as unfit:
        job.console.warn(f"the settings stay as they are: {unfit}")
        return
    context.users, context.timeout_ms = users, settings.list_offsets.timeout_ms
    context.request_seconds = settings.serve.request_seconds
    context.read_ahead.limit_bytes = read_ahead_bytes(settings)
    context.quota.set(pool_options(settings).quota, shared_allowances(settings, SystemClock()))
    context.fetch_threads.resize(settings.fetch.threads, settings.fetch.max_pending)
    context.lookup_threads.resize(settings.serve.lookup_threads, settings.serve.lookup_max_pending)
    context.table_threads.resize(settings.fetch.threads)
    context.send_threads.resize(settings.fetch.threads)
    job.console.note("users, timeouts, read quota, read-ahead and pools follow the settings as they are now")


async def _listen(address: _Address, option: str, start: Callable[[], Awaitable[int]]) -> int:
    try:
        return await start()
    except OSError as taken:
        raise UsageError(
            f"cannot listen on {address[0]}:{address[1]}: {taken.strerror}; give another address ({option})"
        ) from taken


async def _open_groups(job: PlainJob, threads: Threads) -> tuple[Coordinator, SharedGroups | None]:
    settings = job.settings.serve
    first_delay_s = settings.first_rebalance_delay_ms / 1000
    if settings.committed_offsets is CommittedOffsets.MEMORY:
        if settings.node_id is not None:
            raise UsageError(
                "serve.node_id needs a table of committed offsets: set serve.committed_offsets=table, or leave out "
                "serve.node_id"
            )
        return Coordinator(first_delay_s=first_delay_s), None
    leases = None if settings.node_id is None else SlotLeases(_node(settings.node_id, settings))
    table = OffsetTable(job.settings.warehouse_uri, threads, timeout_seconds=settings.request_seconds, leases=leases)
    groups = Coordinator(
        first_delay_s=first_delay_s,
        store=table,
        topic_prefix=settings.topic_prefix or "",
        grace_s=MOST_SESSION_S,
        leases=leases,
    )
    if leases is not None:
        table.call_after_commits(groups.follow_leases)
        return groups, SharedGroups(leases, table, job.console)
    try:
        groups.begin(await table.load())
    except TimeoutError as late:
        raise UsageError(
            f"the committed offsets cannot be read within {settings.request_seconds:g} s; try again, or give "
            "--set serve.committed_offsets=memory"
        ) from late
    return groups, None


def _node(node_id: int, settings: ServeSettings) -> Node:
    lease_ms = round(settings.group_lease_seconds * 1000)
    return Node(node_id=node_id, host="", port=0, incarnation=uuid4().hex, lease_ms=lease_ms)


async def _join_nodes(context: Context, settings: ServeSettings) -> asyncio.Task[None] | None:
    """Register this endpoint with the others, and keep its leases."""
    if context.shared is None:
        return None
    try:
        await context.shared.register(context.host, context.port)
    except TimeoutError as late:
        raise UsageError(
            f"the leases of consumer groups cannot be written within {settings.request_seconds:g} s; try again, or "
            "leave out serve.node_id"
        ) from late
    return asyncio.create_task(context.shared.keep(settings.group_lease_seconds))


async def _leave_nodes(context: Context, keeping: asyncio.Task[None] | None) -> None:
    if context.shared is not None and keeping is not None:
        keeping.cancel()
        await context.shared.leave()


async def _refresh(context: Context, settings: ServeSettings) -> None:
    """Look for newer tables again and again; a failure is reported, and the tables that are open go on answering.
    Renew the committed offsets of groups that have members, and remove those whose time is over."""
    while True:
        await asyncio.sleep(settings.refresh_seconds)
        now, now_ms = asyncio.get_running_loop().time(), time.time_ns() // 1_000_000
        aged = context.groups.list_aged(now, now_ms, settings.offsets_retention_minutes * 60_000)
        await asyncio.gather(*(context.change_offsets(group, changes) for group, changes in aged.items()))
        is_current = False
        try:
            if await context.look_up(context.view.refresh):
                context.announce()
            is_current = True
        except TimeoutError:
            context.console.warn(f"the newest tables cannot be read within {context.request_seconds:g} s")
        except ColdlogError as failed:
            context.console.warn(f"the newest tables cannot be read: {failed}")
        context.is_current = is_current
