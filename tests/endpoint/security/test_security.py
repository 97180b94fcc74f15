"""Is a client answered only if it proves who it is, and does nobody hear what is said?"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import confluent_kafka
import confluent_kafka.admin as confluent
import kafka
import pytest

from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import read_with_librdkafka
from endpoint.support.raw_client import connected, list_offsets, message
from endpoint.support.truth import PLACES, true_records
from servers.certificates import write_certificate

_USER, _PASSWORD = "alice", "correct horse, battery=staple"
_LIBRARY = Path(__file__).parents[3] / "lib"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TOPICS = {topic for topic, _ in PLACES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """An endpoint with TLS and one user, and the certificate that clients trust."""

    endpoint: Endpoint
    certificate: Path


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the command itself has written."""
    command = [sys.executable, "-m", "coldlog.serve", "--hash-password", _USER]
    written = subprocess.run(command, input=f"{_PASSWORD}\n", capture_output=True, text=True, check=True, cwd=_LIBRARY)
    path = tmp_path_factory.mktemp("users") / "users.toml"
    path.write_text(written.stdout)
    return path


@pytest.fixture(scope="module")
def secured(
    golden_uri: str, golden_archive: Path, users: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """The sample, served with TLS to one user."""
    directory = tmp_path_factory.mktemp("secured")
    certificate = write_certificate(directory)
    settings = f"serve.tls_certificate={certificate}", f"serve.users={users}"
    with serving(directory / "notes", golden_uri, golden_archive, *settings) as endpoint:
        yield Secured(endpoint=endpoint, certificate=certificate)


def _topics_by_kafka_python(secured: Secured, mechanism: str, password: str) -> set[str]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=secured.endpoint.address,
        security_protocol="SASL_SSL",
        ssl_cafile=str(secured.certificate),
        sasl_mechanism=mechanism,
        sasl_plain_username=_USER,
        sasl_plain_password=password,
    )
    found = set(consumer.topics())
    consumer.close()
    return found


def _librdkafka_options(secured: Secured, mechanism: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": _USER,
        "sasl.password": password,
    }


def _topics_by_librdkafka(secured: Secured, mechanism: str, password: str) -> set[str]:
    options = _librdkafka_options(secured, mechanism, password)
    admin = confluent.AdminClient({"bootstrap.servers": secured.endpoint.address, **options})
    return set(admin.list_topics(timeout=60).topics)


def _topics_by_aiokafka(secured: Secured, mechanism: str, password: str) -> set[str]:
    async def ask() -> set[str]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=secured.endpoint.address,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=str(secured.certificate)),
            sasl_mechanism=mechanism,
            sasl_plain_username=_USER,
            sasl_plain_password=password,
        )
        try:
            await consumer.start()
            return set(await consumer.topics())
        finally:
            await consumer.stop()

    return asyncio.run(ask())


_LISTERS = {
    "librdkafka": _topics_by_librdkafka,
    "kafka-python": _topics_by_kafka_python,
    "aiokafka": _topics_by_aiokafka,
}


@pytest.mark.shows("{client}", "topics")
@pytest.mark.shows("{client}", "users")
@pytest.mark.parametrize("client", _LISTERS)
@pytest.mark.parametrize("mechanism", _MECHANISMS)
def test_clients_list_topics_through_tls_as_a_user(secured: Secured, mechanism: str, client: str) -> None:
    assert _LISTERS[client](secured, mechanism, _PASSWORD) == _TOPICS


def test_every_record_arrives_through_tls(secured: Secured) -> None:
    options = _librdkafka_options(secured, "SCRAM-SHA-512", _PASSWORD)
    found = read_with_librdkafka(secured.endpoint.address, PLACES, "read_committed", options)
    assert not [place for place in PLACES if found[place] != true_records(place, "read_committed")]


@pytest.mark.parametrize("mechanism", _MECHANISMS)
def test_a_wrong_password_is_refused(secured: Secured, mechanism: str) -> None:
    with pytest.raises(aiokafka.errors.KafkaError):
        _topics_by_aiokafka(secured, mechanism, "wrong")
    reasons: list[str] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.endpoint.address,
            **_librdkafka_options(secured, mechanism, "wrong"),
            "group.id": "unused",
            "error_cb": lambda error: reasons.append(error.name()),
        }
    )
    while not reasons:
        consumer.poll(0.2)
    consumer.close()
    assert "_AUTHENTICATION" in reasons


def test_nothing_is_answered_before_a_client_has_authenticated(
    golden_uri: str, golden_archive: Path, users: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "notes", golden_uri, golden_archive, f"serve.users={users}") as endpoint:
        with connected(endpoint.port) as client:
            client.ask(18, 3, message(18, 3, "ApiVersionsRequest", client_software_name="", client_software_version=""))
            with pytest.raises(ConnectionError):
                client.ask(2, 11, list_offsets([("orders", 0, -1)]))
        with connected(endpoint.port) as client:
            client.connection.sendall((512 * 1024 + 1).to_bytes(4, "big"))
            assert client.is_closed(), "its memory is not for strangers"
        for user, password in ((_USER, "wrong"), ("nobody", _PASSWORD), (_USER, "")):
            with connected(endpoint.port) as client:
                assert client.ask(17, 1, message(17, 1, "SaslHandshakeRequest", mechanism="PLAIN")).error_code == 0
                sent = f"\0{user}\0{password}".encode()
                answer = client.ask(36, 2, message(36, 2, "SaslAuthenticateRequest", auth_bytes=sent))
                assert (answer.error_code, bytes(answer.auth_bytes)) == (58, b"")
                assert client.is_closed()
        assert "before the client has authenticated" in endpoint.said()
        assert _PASSWORD not in endpoint.said()


def test_another_machine_may_connect_only_with_tls_and_users(
    golden_uri: str, golden_archive: Path, users: Path, tmp_path: Path
) -> None:
    certificate = write_certificate(tmp_path)
    tls, known = f"serve.tls_certificate={certificate}", f"serve.users={users}"
    settings = [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}"]
    for given in ([], [tls], [known]):
        command = [sys.executable, "-m", "coldlog.serve", "--listen", "0.0.0.0:0"]
        command += [part for setting in (*settings, *given) for part in ("--set", setting)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_LIBRARY, timeout=120)
        assert ended.returncode == 2
        assert "can be reached from other machines" in ended.stderr
