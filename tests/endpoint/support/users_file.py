"""users_file: write the users of an endpoint, and connect as one of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from endpoint.conftest import Endpoint
from endpoint.support.raw_client import RawClient, connected, message

PASSWORD = "secret"
_LIBRARY = Path(__file__).parents[3] / "lib"


def write_users(path: Path, rights: Mapping[str, str]) -> None:
    """Write the file as the command does, with the rights of each user."""
    parts = []
    for user, lines in rights.items():
        command = [sys.executable, "-m", "coldlog.serve", "--hash-password", user]
        written = subprocess.run(command, input=PASSWORD, capture_output=True, text=True, check=True, cwd=_LIBRARY)
        parts.append(f"{written.stdout}\n{lines}\n")
    path.write_text("".join(parts))


def librdkafka_options(user: str) -> dict[str, str]:
    """How librdkafka authenticates."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


@contextmanager
def connected_as(endpoint: Endpoint, user: str) -> Iterator[RawClient]:
    """Connect and authenticate."""
    with connected(endpoint.port) as client:
        client.ask(17, 1, message(17, 1, "SaslHandshakeRequest", mechanism="PLAIN"))
        sent = f"\0{user}\0{PASSWORD}".encode()
        assert client.ask(36, 2, message(36, 2, "SaslAuthenticateRequest", auth_bytes=sent)).error_code == 0
        yield client
