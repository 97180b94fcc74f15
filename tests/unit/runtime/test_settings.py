"""Settings: defaults, files, `--set`, and what is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from coldlog.archive.open_archive import directory_of
from coldlog.errors import UsageError
from coldlog.model.layout_names import LayoutName
from coldlog.model.states import IndexDepth
from coldlog.runtime.installation import ROOT
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import list_setting_keys, load_settings


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "conf").mkdir(parents=True)
    (root / "conf" / "base.toml").write_text(
        'index.depth = "batch"\nbuild.tasks_per_core = 3\nspark."ui.enabled" = true\n'
    )
    (root / "conf" / "near.toml").write_text(
        '[build]\ntasks_per_core = 4\n[archive]\nuri = "samples/a"\n[spark.ui]\nenabled = false\n'
    )
    return root


def test_set_wins_over_environment_wins_over_base_wins_over_default(repository: Path) -> None:
    settings = load_settings("near", ["build.tasks_per_core=5"], repository=repository)
    assert (settings.build.tasks_per_core, settings.origin("build.tasks_per_core")) == (5, "--set")
    settings = load_settings("near", repository=repository)
    assert (settings.build.tasks_per_core, settings.origin("build.tasks_per_core")) == (4, "conf/near.toml")
    assert (settings.index.depth, settings.origin("index.depth")) == (IndexDepth.BATCH, "conf/base.toml")
    assert (settings.build.retry_quarantined, settings.origin("build.retry_quarantined")) == (False, "default")


def test_the_last_of_two_assignments_wins(repository: Path) -> None:
    settings = load_settings("near", ["index.depth=batch", "index.depth=record"], repository=repository)
    assert settings.index.depth is IndexDepth.RECORD


def test_a_relative_path_is_relative_to_the_repository_in_a_file_and_to_the_user_after_set(
    repository: Path, tmp_path: Path
) -> None:
    settings = load_settings("near", ["warehouse.uri=tables"], repository=repository, directory=tmp_path / "user")
    assert settings.archive.uri == str(repository / "samples" / "a")
    assert settings.warehouse.uri == str(tmp_path / "user" / "tables")


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://bucket/a/", "s3://bucket/a"),
        ("file:///archive/a=b", "/archive/a=b"),
        ("/archive/with a space", "/archive/with a space"),
        ("/archive/a?b#c@d%20e", "/archive/a?b#c@d%20e"),
        ("hdfs://name:8020/archive", "hdfs://name:8020/archive"),
    ],
)
def test_absolute_uris_are_kept(repository: Path, text: str, uri: str) -> None:
    settings = load_settings("near", [f"archive.uri={text}"], repository=repository)
    assert settings.archive_uri == uri


@pytest.mark.parametrize("uri", ["gs://bucket/coldlog", "hdfs://name:8020/coldlog"])
def test_a_warehouse_in_an_unknown_store_is_refused(repository: Path, uri: str) -> None:
    refusal = re.escape(f"warehouse.uri (--set) = '{uri}': tables can be in a directory or in a bucket of S3")
    with pytest.raises(UsageError, match=f"^{refusal}"):
        load_settings("near", [f"warehouse.uri={uri}"], repository=repository)


@pytest.mark.parametrize("key", ["archive.uri", "warehouse.uri"])
def test_a_uri_with_one_slash_is_no_folder(repository: Path, key: str) -> None:
    with pytest.raises(UsageError, match=rf"^{key} \(--set\) begins with s3:/: a uri has two slashes there, s3://$"):
        load_settings("near", [f"{key}=s3:/bucket/a"], repository=repository)


@pytest.mark.parametrize("begin", ["file:", "file://", "file://localhost", "FILE://localhost", "file:///"])
def test_a_file_uri_is_the_same_path_for_warehouse_and_archive(repository: Path, begin: str) -> None:
    settings = load_settings(
        "near", [f"warehouse.uri={begin}/tmp/a%20b/", "archive.uri=/tmp/a b"], repository=repository
    )
    assert settings.warehouse_uri == settings.archive_uri == "/tmp/a b"
    if begin != "file:///":
        assert directory_of(f"{begin}/tmp/a%20b/") == settings.warehouse_uri


@pytest.mark.parametrize("sign", ["?", "@", "#", "%41", "%"])
def test_special_characters_of_uris_are_part_of_the_name_in_a_file_uri(repository: Path, sign: str) -> None:
    settings = load_settings("near", [f"warehouse.uri=file:///tmp/x{sign}y"], repository=repository)
    assert settings.warehouse_uri == f"/tmp/x{sign.replace('%41', 'A')}y"


@pytest.mark.parametrize("uri", ["/tmp/a%20b", "file:///tmp/a%2520b", "/tmp/a\\b", "/tmp/a\tb", "s3://bucket/a%2Fb"])
def test_a_warehouse_that_spark_and_delta_rs_take_for_different_places_is_refused(repository: Path, uri: str) -> None:
    with pytest.raises(UsageError, match="a warehouse cannot be at .*without percent escapes"):
        load_settings("near", [f"warehouse.uri={uri}"], repository=repository)
    assert load_settings("near", [f"archive.uri={uri}"], repository=repository).archive_uri


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("file://host/tmp/x", "warehouse.uri \\(--set\\): .* no other host"),
        ("file://abc123@host/tmp/x", "no other host"),
        ("file:tmp/x", "file:///directory"),
        ("file:", "file:///directory"),
        ("file://localhost", "file:///directory"),
        ("file:///tmp/%ff", "not UTF-8"),
        ("file:///tmp/%00", "a path or a URI"),
        ("/tmp/\0", "a path or a URI"),
        ("~no-such-user/x", "warehouse.uri \\(--set\\) = '~no-such-user/x'.*home"),
    ],
)
def test_a_file_uri_that_is_not_a_path_of_this_machine_is_refused(repository: Path, uri: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        load_settings("near", [f"warehouse.uri={uri}"], repository=repository)
    assert "abc123" not in str(caught.value)


def test_spark_keys_are_passed_on_as_texts(repository: Path) -> None:
    settings = load_settings("near", ["spark.sql.ansi.enabled=true"], repository=repository)
    assert settings.spark == {"spark.ui.enabled": "false", "spark.sql.ansi.enabled": "true"}


def test_bytes_are_written_with_or_without_a_unit(repository: Path) -> None:
    for text in ("67108864", "64 MiB", "64mib", "65536KiB"):
        assert (
            load_settings("near", [f"index.window_bytes={text}"], repository=repository).index.window_bytes == 1 << 26
        )


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("index.dept=record", ["unknown setting index.dept", "--set", "did you mean index.depth?"]),
        ("warehouse=x", ["unknown setting warehouse", "did you mean warehouse.uri?"]),
        ("index.depth=deep", ["index.depth", "'deep'", "--set", "sidecar or batch or record"]),
        ("archive.layout=x", ["archive.layout", "local_tiered_storage"]),
        ("archive.uri=", ["archive.uri", "a path or a URI"]),
        ("index.window_bytes=32 MB", ["index.window_bytes", "32 MiB"]),
        ("index.window_bytes=-1", ["index.window_bytes", "bytes"]),
        ("index.window_bytes=1", ["index.window_bytes", "from 1048576"]),
        ("build.tasks_per_core=0", ["build.tasks_per_core", "whole number from 1 to 64"]),
        ("build.tasks_per_core=1.5", ["build.tasks_per_core", "whole number"]),
        ("build.max_quarantined_share=1.01", ["number from 0 to 1"]),
        ("build.max_quarantined_share=nan", ["number from 0 to 1"]),
        ("build.retry_quarantined=yes", ["true or false"]),
        # Running jobs and questions about the past read old files.
        ("maintenance.vacuum_after_hours=167", ["whole number", "168"]),
        ("build.retry_quarantined", ["expected key=value"]),
        ("=x", ["expected key=value"]),
    ],
)
def test_a_wrong_assignment_is_refused_with_what_would_be_right(
    repository: Path, assignment: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings("near", [assignment], repository=repository)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "assignment",
    [
        "spark.hadoop.fs.s3a.secret.key=abc123",
        "spark.hadoop.fs.s3a.access.key=abc123",
        "archive.password=abc123",
        "aws.session_token=abc123",
        "archive.uri=s3://name:abc123@bucket/a",
        "archive.uri=s3://abc123@bucket/a",
        "archive.uri=s3://name%3Aabc123%40bucket/a",
        "archive.uri=s3://name%253Aabc123%2540bucket/a",
        "archive.uri=s3://name:abc/123@bucket/abc123",
        "warehouse.uri=s3://bucket/a?AWSAccessKeyId=AK&Signature=abc123",
        "warehouse.uri=S3A://bucket/a?abc123",
        "warehouse.uri=s3://bucket/a#abc123",
        "warehouse.uri=https://account.blob.core.windows.net/x?sv=1&sig=abc123",
        "warehouse.uri=https:/account.blob.core.windows.net/x?sv=1&sig=abc123",
        "warehouse.uri=abfss://account.dfs.core.windows.net/x?sig=abc123",
        "warehouse.uri=file://name:abc123@host/x",
        "archive.layout=https://host/x?sig=abc123",
        "spark.jars=/a.jar,https://name:abc123@host/b.jar",
        "spark.archives=https://host/b.tar.gz?sig=abc123#environment",
        "s3://name:abc123@bucket/a",
        "spark.driver.extraJavaOptions=-Xss4m -Djavax.net.ssl.trustStorePassword=abc123",
        "metadata.bootstrap_servers=name:abc123@host:9092",
        "metadata.bootstrap_servers=other:9092,name:abc123@host:9092",
    ],
)
def test_what_looks_like_a_credential_is_refused_and_not_repeated(repository: Path, assignment: str) -> None:
    with pytest.raises(UsageError, match="credential") as caught:
        load_settings("near", [assignment], repository=repository)
    assert "abc123" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.archives", "s3a://bucket/environment.tar.gz#environment"),
        ("spark.mongodb.connection.uri", "mongodb://host/events?retryWrites=true"),
        ("spark.jars.packages", "g:a:1?transitive=false"),
        ("spark.kafka.bootstrap.servers", "one:9092,[::1]:9093"),
        ("spark.driver.extraJavaOptions", "-Xss4m -Duser.timezone=UTC -XX:+UseSerialGC"),
        ("spark.proxies", "http://one:80/,http://two:80/ mail@host"),
    ],
)
def test_a_text_without_a_secret_is_accepted(repository: Path, key: str, value: str) -> None:
    assert load_settings("near", [f"{key}={value}"], repository=repository).spark[key] == value


def test_a_provider_of_credentials_may_be_named(repository: Path) -> None:
    key = "spark.hadoop.fs.s3a.aws.credentials.provider"
    assert load_settings("near", [f"{key}=a.b.C"], repository=repository).spark[key] == "a.b.C"


def test_an_error_in_a_file_names_the_file(repository: Path) -> None:
    (repository / "conf" / "near.toml").write_text("[index]\ndepth = 3\n")
    with pytest.raises(UsageError, match="index.depth = 3 \\(conf/near.toml\\): expected sidecar or batch or record"):
        load_settings("near", repository=repository)
    (repository / "conf" / "near.toml").write_text("[index\n")
    with pytest.raises(UsageError, match="conf/near.toml is not TOML"):
        load_settings("near", repository=repository)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xef\xbb\xbfbuild.tasks_per_core = 4\n", "begins with a byte order mark"),
        (b"warehouse.uri = /data/coldlog", r"is not TOML: .*line 1, column 17.*; texts stand in quotes"),
        ("build.tasks_per_core = 4\n".encode("utf-16"), "is not TOML: .*utf-8"),
        (b"build.tasks_per_core = " + b"9" * 5_000, "is not TOML: .*digits"),
        (b"build.tasks_per_core = [0x" + b"9" * 5_000 + b"]", "is not TOML: .*digits"),
        (b"index.window_bytes = '" + b"9" * 5_000 + b"'", "expected bytes"),
        (b"index.window_bytes = '9999999999 TiB'", "expected bytes"),
        (b"a = " + b"[" * 5_000 + b"]" * 5_000, "is nested too deeply"),
        (b"a = " + b"{a = " * 900 + b"1" + b"}" * 900, "is nested too deeply|unknown setting"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name(repository: Path, content: bytes, told: str) -> None:
    (repository / "conf" / "near.toml").write_bytes(content)
    with pytest.raises(UsageError, match=told) as caught:
        load_settings("near", repository=repository)
    assert "conf/near.toml" in str(caught.value)


def test_a_directory_instead_of_a_settings_file_is_refused(repository: Path) -> None:
    (repository / "conf" / "base.toml").unlink()
    (repository / "conf" / "base.toml").mkdir()
    with pytest.raises(UsageError, match="conf/base.toml cannot be read: Is a directory"):
        load_settings("near", repository=repository)


@pytest.mark.parametrize("env", ["far", "../conf/near", "", "base.toml"])
def test_an_unknown_environment_is_refused_with_the_known_ones(repository: Path, env: str) -> None:
    with pytest.raises(UsageError, match="give one of near"):
        load_settings(env, repository=repository)


def test_the_error_of_a_missing_uri_says_how_to_set_it() -> None:
    with pytest.raises(UsageError, match="--set archive.uri=... or a file with it"):
        _ = Settings().archive_uri


def test_every_environment_of_the_repository_loads() -> None:
    for path in (ROOT / "conf").glob("*.toml"):
        assert tomllib.loads(path.read_text())
        if path.stem != "base":
            assert load_settings(path.stem).archive.layout is LayoutName.LOCAL_TIERED_STORAGE


def test_every_key_has_a_meaning_and_a_valid_default(repository: Path) -> None:
    for key in list_setting_keys():
        assert key.meaning
        if key.default is not None:
            default = str(key.default).lower() if isinstance(key.default, bool) else str(key.default)
            settings = load_settings("near", [f"{key.key}={default}"], repository=repository)
            assert dict(settings.items())[key.key] == key.default


@pytest.mark.parametrize("uri", ["s3://", "s3:///", "s3a:////"])
def test_a_uri_without_a_bucket_is_refused(repository: Path, uri: str) -> None:
    with pytest.raises(UsageError, match="names no bucket"):
        load_settings("near", [f"warehouse.uri={uri}"], repository=repository)
