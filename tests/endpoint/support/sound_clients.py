"""sound_clients: ask again and again, compare with the answers of a quiet endpoint, and measure the time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from endpoint.support.raw_client import RawClient, connected, fetch, framed, list_offsets, message

OF_TABLES = (
    framed(3, 12, message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)),
    framed(2, 11, list_offsets([("orders", 0, -1), ("orders", 0, 1_700_042_400_000), ("payments", 0, -2)])),
    framed(2, 11, list_offsets([("payments", 1, 1_700_042_400_000)])),
    framed(18, 3, message(18, 3, "ApiVersionsRequest", client_software_name="a", client_software_version="1")),
)
ASKED = (
    *OF_TABLES,
    framed(1, 12, fetch(12, [("late.events", 0, 0)])),
    framed(1, 12, fetch(12, [("payments", 0, 100), ("payments", 1, 0)], partition_max_bytes=20_000)),
)


@contextmanager
def beside(call: Callable[[threading.Event], None], count: int = 1) -> Iterator[None]:
    """Make the call in so many threads. The event is set at the end of the block, which waits for them."""
    has_ended = threading.Event()
    threads = [threading.Thread(target=call, args=(has_ended,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()


@dataclass(slots=True)
class SoundClients:
    """`seconds` are those of each answer, `wrong` says what was not right."""

    port: int
    asked: Sequence[bytes]
    truth: Sequence[bytes]
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def quantile_ms(self, percent: int) -> float:
        """How many milliseconds so many percent of the answers took at most."""
        return 1000 * statistics.quantiles(self.seconds, n=100, method="inclusive")[percent - 1]

    @contextmanager
    def asking(self, count: int = 2) -> Iterator[None]:
        """So many clients ask, each on its connection, until the end of the block."""
        with beside(self._ask, count):
            yield

    def _ask(self, has_ended: threading.Event) -> None:
        try:
            with connected(self.port) as client:
                while not has_ended.wait(0.005):
                    for at, request in enumerate(self.asked):
                        began = time.perf_counter()
                        answer = _answer(client, request)
                        self.seconds.append(time.perf_counter() - began)
                        if answer != self.truth[at]:
                            self.wrong.append(f"answer {at}: {len(answer)} bytes, not {len(self.truth[at])}")
        except OSError as ended:
            self.wrong.append(f"a sound connection ended: {ended}")


def sound_clients(port: int, asked: Sequence[bytes] = ASKED) -> SoundClients:
    """Ask a quiet endpoint what is true."""
    with connected(port) as client:
        return SoundClients(port, asked, [_answer(client, request) for request in asked])


def _answer(client: RawClient, request: bytes) -> bytes:
    client.connection.sendall(request)
    return client.receive()
