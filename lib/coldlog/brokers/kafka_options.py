"""Import the Kafka client, and read the options that a user may set for it.

The client is kafka-python, the extra `kafka`. Only this module imports it, and only when a broker is needed. It was
chosen because its consumer works without a group. librdkafka's consumer requests the group's coordinator, which makes a
broker create `__consumer_offsets`.

Options are in a properties file, one `key=value` per line; `#` begins a comment. Keys are the client's names, with dots
or underscores (`security.protocol`, `ssl_cafile`, `sasl.plain.password`). Values never appear in a message.

Refused (`UsageError`): the client is not installed, a file that cannot be read, options that the client does not have
or that a user may not set, values of the wrong type.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from coldlog.errors import UsageError

_SETTABLE = re.compile(r"security_|ssl_(?!context)|sasl_(?!oauth)|proxy_url|client_|re(connect|try)_|connections_")


def client_library() -> ModuleType:
    """The package `kafka`."""
    try:
        import kafka
    except ImportError as missing:
        raise UsageError(
            "kafka-python is not installed: run `make setup` in a checkout, else pip install 'coldlog[kafka]', on a "
            "cluster also for every executor's Python"
        ) from missing
    _mend_refusals()
    return kafka  # type: ignore[no-any-return]  # it ships no types


@functools.cache
def _mend_refusals() -> None:
    """Make the client report a refused password at once.

    kafka-python 3.0.12 has two faults. It drops bytes that arrive together with the end of a connection. A broker
    sends its refusal and closes the connection, so a slow client sees only the end. And the client does not report a
    refusal of its first connection, but retries until its time is up.
    """
    from kafka.errors import SaslAuthenticationFailedError
    from kafka.net import manager, transport

    def with_last_bytes(receive: Callable[[Any], tuple[bytes, object]]) -> Callable[[Any], tuple[bytes, object]]:
        def receive_all(self: Any) -> tuple[bytes, object]:
            received, end = receive(self)
            # The next read finds the end again.
            return received, None if received else end

        return receive_all

    for kind in (transport.KafkaTCPTransport, transport.KafkaSSLTransport):
        kind._sock_recv = with_last_bytes(kind._sock_recv)
    connect = manager.KafkaConnectionManager._connect

    async def connect_or_refuse(self: Any, node: Any, connection: Any, **options: object) -> None:
        await connect(self, node, connection, **options)
        refusal = connection.init_future.exception
        if isinstance(refusal, SaslAuthenticationFailedError):
            self._auth_failures[node.node_id] = refusal

    manager.KafkaConnectionManager._connect = connect_or_refuse


def read_client_options(path: str) -> dict[str, str]:
    """The checked options of the file, by the client's names."""
    return dict(_iter_options(path))


def client_arguments(options: Mapping[str, str]) -> dict[str, object]:
    """The options with the types that the client needs."""
    return {name: _converted(name, text) for name, text in options.items()}


def _iter_options(path: str) -> Iterator[tuple[str, str]]:
    allowed = sorted(_option_defaults())
    try:
        with open(path, encoding="utf-8") as lines:
            stripped = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    except (OSError, UnicodeDecodeError) as unreadable:
        raise UsageError(f"metadata.client_config cannot be read: {path}: {type(unreadable).__name__}") from unreadable
    for number, line in stripped:
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, text = line.partition("=")
        name = key.strip().replace(".", "_")
        if not equals:
            raise UsageError(f"{path}, line {number}: not key=value")
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
            raise UsageError(f"{path}, line {number}: {key.strip()} cannot be set; did you mean {nearest}?")
        _converted(name, text.strip(), f"{path}, line {number}: ")
        yield name, text.strip()


def _option_defaults() -> dict[str, object]:
    """The options that a user may set, with their defaults: every kind of client has them, and a text can give them."""
    known: dict[str, object] = client_library().KafkaAdminClient.DEFAULT_CONFIG
    return {name: default for name, default in known.items() if _SETTABLE.match(name)}


def _converted(name: str, text: str, where: str = "") -> object:
    default = _option_defaults()[name]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return int(text) if isinstance(default, int) else text
    except (KeyError, ValueError):
        # Raised without its cause, which shows the value.
        allowed = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"{where}{name} must be {allowed}") from None
