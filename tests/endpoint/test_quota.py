"""Does the endpoint keep the read quota, and follow its settings while it runs?"""

from __future__ import annotations

from pathlib import Path

from endpoint.conftest import serving
from endpoint.support.clients import read_with_librdkafka
from endpoint.support.follow import follow
from endpoint.support.raw_client import connected, fetch
from endpoint.support.truth import PLACES, true_records
from endpoint.support.users_file import connected_as, write_users
from endpoint.test_metrics import metric_samples, metrics_address

_QUOTA = "remote.log.manager.fetch.max.bytes.per.second"
_ASKED = [("payments", 0, 0), ("payments", 1, 0)]


def test_a_fetch_over_the_quota_serves_one_partition_and_throttles_the_others(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    config = tmp_path / "coldlog.toml"
    config.write_text(f'"{_QUOTA}" = 1000\n')
    observed = "serve.metrics=127.0.0.1:0"
    with serving(tmp_path / "notes", golden_uri, golden_archive, observed, config=config) as endpoint:
        with connected(endpoint.port) as client:
            answer = client.ask(1, 12, fetch(12, _ASKED))
            partitions = [partition for topic in answer.responses for partition in topic.partitions]
            assert {partition.error_code for partition in partitions} == {0}
            assert sorted(bool(partition.records) for partition in partitions) == [False, True]
            read_bytes = sum(len(partition.records or b"") for partition in partitions)
            assert 1000 < answer.throttle_time.total_seconds() * 1000 <= read_bytes
            assert client.ask(1, 12, fetch(12, _ASKED)).throttle_time.total_seconds() > 0
        samples = metric_samples(metrics_address(endpoint))
        assert samples["fetch_throttle_seconds_count",] == 2
        assert samples["fetch_throttle_longest_seconds",] > 1
        assert samples["throttled_partitions_total", "payments"] >= 3
        assert samples["throttled_bytes_total", "payments"] > 3000
        config.write_text(f'"{_QUOTA}" = "1GiB"\n')
        assert "follow" in follow(endpoint)
        found = read_with_librdkafka(endpoint.address, PLACES, "read_committed")
        assert not [place for place in PLACES if found[place] != true_records(place, "read_committed")]
        config.write_text("[fetch]\nno_such_setting = 1\n")
        assert "stay as they are" in follow(endpoint)


def test_every_record_arrives_under_a_quota(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "notes", golden_uri, golden_archive, f"{_QUOTA}=1MiB") as endpoint:
        found = read_with_librdkafka(endpoint.address, PLACES, "read_uncommitted")
    assert not [place for place in PLACES if found[place] != true_records(place, "read_uncommitted")]


def test_rights_of_users_are_followed(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    write_users(users, {"all": ""})
    with (
        serving(tmp_path / "notes", golden_uri, golden_archive, f"serve.users={users}") as endpoint,
        connected_as(endpoint, "all") as client,
    ):
        errors = []
        for rights in (None, 'topics = ["orders"]'):
            if rights is not None:
                users.write_text(f"{users.read_text()}\n{rights}\n")
                assert "follow" in follow(endpoint)
            errors.append([topic.partitions[0].error_code for topic in client.ask(1, 12, fetch(12, _ASKED)).responses])
    assert errors == [[0, 0], [29, 29]]
