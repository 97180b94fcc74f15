"""Test which source of a setting wins: conf, the user's file, variables, --set."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import list_setting_keys, load_settings, variable_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "conf").mkdir(parents=True)
    (root / "conf" / "base.toml").write_text("")
    (root / "conf" / "local.toml").write_text("build.tasks_per_core = 3\n")
    return root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "coldlog.toml"
    path.parent.mkdir()
    path.write_text('build.tasks_per_core = 4\narchive.uri = "archive"\n')
    return path


def test_the_users_file_wins_over_conf_a_variable_over_the_file_and_set_over_all(
    repository: Path, config: Path
) -> None:
    key, variable = "build.tasks_per_core", {"COLDLOG_BUILD__TASKS_PER_CORE": "5"}
    loaded = [
        load_settings(repository=repository, environment={}),
        load_settings(repository=repository, environment={}, config=str(config)),
        load_settings(repository=repository, environment=variable, config=str(config)),
        load_settings("local", [f"{key}=6"], repository=repository, environment=variable, config=str(config)),
    ]
    assert [each.build.tasks_per_core for each in loaded] == [3, 4, 5, 6]
    assert [each.origin(key) for each in loaded] == ["conf/local.toml", str(config), *variable, "--set"]


def test_the_file_of_the_option_wins_over_that_of_the_variable(repository: Path, config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("build.tasks_per_core = 7\n")
    environment = {"COLDLOG_CONFIG": str(other)}
    assert load_settings(repository=repository, environment=environment).build.tasks_per_core == 7
    chosen = load_settings(repository=repository, environment=environment, config=str(config))
    assert chosen.build.tasks_per_core == 4


def test_a_relative_path_is_of_the_files_folder_in_a_file_and_of_the_current_one_in_a_variable(
    repository: Path, config: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    environment = {"COLDLOG_WAREHOUSE__URI": "tables", "COLDLOG_CONFIG": "../mine/coldlog.toml"}
    here.mkdir()
    settings = load_settings(repository=repository, environment=environment, directory=here)
    assert settings.archive_uri == str(config.parent / "archive")
    assert settings.warehouse_uri == str(here / "tables")


def test_every_key_has_a_variable_of_its_own(repository: Path) -> None:
    keys = [each.key for each in list_setting_keys()]
    assert len({variable_of(key) for key in keys}) == len(keys)
    settings = load_settings(repository=repository, environment={variable_of("retention.ms"): "7"})
    assert (settings.expire.retention_ms, settings.origin("retention.ms")) == (7, "COLDLOG_RETENTION__MS")


def test_a_variable_that_is_no_setting_is_left_to_others(repository: Path) -> None:
    environment = {"COLDLOG_RETRIES": "1", "COLDLOG_WAREHOUSE": "/x", "COLDLOG_SETTINGS": "{}", "ARCHIVE__URI": "/y"}
    assert load_settings(repository=repository, environment=environment).archive.uri is None


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("COLDLOG_ARCHIVE_URI", "did you mean COLDLOG_ARCHIVE__URI"),
        ("COLDLOG_ARCHIVE__URL", "did you mean COLDLOG_ARCHIVE__URI"),
        ("COLDLOG_SPARK__UI__ENABLED", "--set or in a file"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_right_one(repository: Path, variable: str, told: str) -> None:
    with pytest.raises(UsageError, match=f"{variable}: .*{told}"):
        load_settings(repository=repository, environment={variable: "/archive"})


def test_a_wrong_value_names_its_variable_and_a_credential_is_not_repeated(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"COLDLOG_BUILD__TASKS_PER_CORE.*whole number"):
        load_settings(repository=repository, environment={"COLDLOG_BUILD__TASKS_PER_CORE": "many"})
    environment = {"COLDLOG_METADATA__BOOTSTRAP_SERVERS": "user:Wx4T9q@host:9092"}
    with pytest.raises(UsageError, match="looks like a credential") as refused:
        load_settings(repository=repository, environment=environment)
    assert "Wx4T9q" not in str(refused.value)


def test_a_users_file_that_is_missing_is_refused_with_what_to_correct(repository: Path) -> None:
    with pytest.raises(UsageError, match="gone.toml does not exist: correct --config or COLDLOG_CONFIG"):
        load_settings(repository=repository, environment={"COLDLOG_CONFIG": "gone.toml"})


def test_the_sample_is_an_archive_of_a_checkouts_local_environment_only(repository: Path) -> None:
    (repository / "conf" / "sample.toml").write_text('archive.uri = "sample"\n')
    (repository / "conf" / "cluster.toml").write_text("")
    local, cluster = (load_settings(env, repository=repository, environment={}) for env in ("local", "cluster"))
    assert (local.archive.uri, cluster.archive.uri) == (str(repository / "sample"), None)
