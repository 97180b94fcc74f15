"""Read the settings of a run from files, the environment and the command line.

The order is: the default, conf/base.toml, conf/<env>.toml, the user's file (`--config FILE`, else `COLDLOG_CONFIG`),
variables such as `COLDLOG_ARCHIVE__URI`, `--set key=value`; the last one wins. In a checkout, conf/sample.toml adds the
sample archive to conf/local.toml. A relative path in a file of conf is relative to the repository, in the user's file
to its folder, elsewhere to the user's current directory.

A URI with the scheme `file` becomes a path without percent escapes. Every other URI stays as it is written.

Refused with `UsageError`: files that cannot be read, unknown keys (the message names the nearest key), values of the
wrong type or out of range, files of another host, and everything that looks like a credential. The message does not
repeat a credential. Credentials belong to the platform: instance roles, provider chains, the environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.runtime.installation import COMMAND, ROOT
from coldlog.runtime.setting_uris import (
    absolute_uri,
    is_secret_key,
    names_a_secret,
    require_known_store,
    require_same_place,
)
from coldlog.runtime.settings import GIB, KIB, MIB, SETTING_GROUPS, ByteCount, Settings, Uri, key_of

CONFIG_VARIABLE = "COLDLOG_CONFIG"
_PREFIX = "COLDLOG_"
_BETWEEN_GROUP_AND_NAME = "__"
_SAMPLE = "sample"
_NO_ENVIRONMENTS = {"base", _SAMPLE}
_ENV_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_BYTES = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|TiB)?", re.IGNORECASE)
_BYTE_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_MOST_BYTES = 2**63 - 1
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey:
    """A key that can be set: its type in words, its default, its meaning and its inclusive bounds."""

    key: str
    annotation: object
    allowed: str
    default: object
    meaning: str
    at_least: float | None
    at_most: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignment:
    """A value as it was found, before conversion; relative paths are relative to `directory`."""

    key: str
    value: object
    origin: str
    directory: Path


@cache
def list_setting_keys() -> tuple[SettingKey, ...]:
    """List every key that is not under `spark.`, in the order of declaration."""
    return tuple(
        SettingKey(
            key=key_of(group, field),
            annotation=hints[field.name],
            allowed=_allowed(hints[field.name], field.metadata["at_least"], field.metadata["at_most"]),
            default=field.default,
            meaning=field.metadata["meaning"],
            at_least=field.metadata["at_least"],
            at_most=field.metadata["at_most"],
        )
        for group, group_class in SETTING_GROUPS.items()
        for hints in [typing.get_type_hints(group_class)]
        for field in dataclasses.fields(group_class)
    )


def load_settings(
    env: str = "local",
    assignments: Sequence[str] = (),
    *,
    config: str | None = None,
    environment: Mapping[str, str] | None = None,
    repository: Path = ROOT,
    directory: Path | None = None,
) -> Settings:
    """Load the settings of a run.

    `assignments` are the texts after `--set`, `config` is the user's file, `environment` replaces that of this process,
    and `directory` the current directory.
    """
    variables = os.environ if environment is None else environment
    here = directory or Path.cwd()
    users_file = config or variables.get(CONFIG_VARIABLE)
    found = [
        *_iter_conf(repository / "conf" / "base.toml", repository),
        *_iter_conf(_conf_of(env, repository), repository),
        *(_iter_sample(repository) if env == "local" else ()),
        *(_iter_users_file(here / users_file, users_file) if users_file else ()),
        *_iter_variables(variables, here),
        *(_read_assignment(text, here) for text in assignments),
    ]
    return _converted_settings(env, found)


def settings_of(values: Mapping[str, str], origin: str) -> Settings:
    """Make settings from these values alone, without the conf files.

    Relative paths are relative to the current directory of the process. `origin` names the source of the values in
    messages.
    """
    found = [_Assignment(key=key, value=value, origin=origin, directory=Path.cwd()) for key, value in values.items()]
    return _converted_settings("local", found)


def _converted_settings(env: str, found: Sequence[_Assignment]) -> Settings:
    keys = {each.key: each for each in list_setting_keys()}
    values: dict[str, object] = {}
    spark: dict[str, str] = {}
    for assignment in found:
        _refuse_secret(assignment)
        if assignment.key.startswith("spark."):
            spark[assignment.key] = _spark_value(assignment)
        elif assignment.key in keys:
            values[assignment.key] = _checked_value(keys[assignment.key], assignment)
        else:
            raise _unknown_key(assignment, list(keys))
    return _settings(env, values, spark, {each.key: each.origin for each in found})


def _settings(env: str, values: Mapping[str, object], spark: Mapping[str, str], origins: Mapping[str, str]) -> Settings:
    groups = {
        group: group_class(
            **{
                field.name: values[key_of(group, field)]
                for field in dataclasses.fields(group_class)
                if key_of(group, field) in values
            }
        )
        for group, group_class in SETTING_GROUPS.items()
    }
    return Settings(env=env, spark=dict(spark), origins=dict(origins), **groups)


def _conf_of(env: str, repository: Path) -> Path:
    path = repository / "conf" / f"{env}.toml"
    known = sorted(file.stem for file in (repository / "conf").glob("*.toml") if file.stem not in _NO_ENVIRONMENTS)
    if not _ENV_NAME.fullmatch(env) or not path.is_file():
        raise UsageError(f"--env {env}: conf/{env}.toml does not exist; give one of {', '.join(known)}")
    return path


def _iter_conf(path: Path, repository: Path) -> Iterator[_Assignment]:
    origin = f"conf/{path.name}"
    for key, value in _read_conf(path, origin):
        yield _Assignment(key=key, value=value, origin=origin, directory=repository)


def _iter_sample(repository: Path) -> Iterator[_Assignment]:
    path = repository / "conf" / f"{_SAMPLE}.toml"
    return _iter_conf(path, repository) if path.is_file() else iter(())


def _iter_users_file(path: Path, origin: str) -> Iterator[_Assignment]:
    if not path.exists():
        raise UsageError(f"{origin} does not exist: correct --config or {CONFIG_VARIABLE}")
    for key, value in _read_conf(path, origin):
        yield _Assignment(key=key, value=value, origin=origin, directory=path.resolve().parent)


def _iter_variables(variables: Mapping[str, str], directory: Path) -> Iterator[_Assignment]:
    """The settings of variables such as `COLDLOG_ARCHIVE__URI`; without two underscores a variable is no setting."""
    known = {variable_of(each.key): each.key for each in list_setting_keys()}
    misspelt = {name.replace(_BETWEEN_GROUP_AND_NAME, "_"): name for name in known}
    for name in sorted(name for name in variables if name.startswith(_PREFIX)):
        if name in known:
            yield _Assignment(key=known[name], value=variables[name], origin=name, directory=directory)
        elif name in misspelt:
            raise UsageError(f"unknown variable {name}: did you mean {misspelt[name]}?")
        elif name.startswith(f"{_PREFIX}SPARK{_BETWEEN_GROUP_AND_NAME}"):
            raise UsageError(f"{name}: options of Spark are given with --set or in a file (--config), not by variables")
        elif _BETWEEN_GROUP_AND_NAME in name:
            nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
            raise UsageError(f"unknown variable {name}: did you mean {nearest}?")


def variable_of(key: str) -> str:
    """The environment variable that sets a key."""
    return _PREFIX + key.upper().replace(".", _BETWEEN_GROUP_AND_NAME)


def _read_conf(path: Path, origin: str) -> list[tuple[str, object]]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.startswith(_BYTE_ORDER_MARK):
            raise UsageError(f"{origin} begins with a byte order mark, which TOML does not allow: save it without one")
        found = list(_iter_flat(tomllib.loads(text), ""))
        # Python reads a hexadecimal number of any length, but refuses to print one of some thousand digits.
        str(found)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing: install coldlog again") from error
    except OSError as error:
        raise UsageError(f"{origin} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{origin} is nested too deeply: write settings as group.key = value") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of too many digits
        hint = "; texts stand in quotes" if str(error).startswith("Invalid value") else ""
        raise UsageError(f"{origin} is not TOML: {error}{hint}") from error
    return found


def _iter_flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _iter_flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_assignment(text: str, directory: Path) -> _Assignment:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        shown = "--set (what looks like a credential is not shown)" if names_a_secret(text) else f"--set {text}"
        raise UsageError(f"{shown}: expected key=value")
    return _Assignment(key=key.strip(), value=value.strip(), origin="--set", directory=directory)


def _refuse_secret(assignment: _Assignment) -> None:
    if is_secret_key(assignment.key) or names_a_secret(str(assignment.value)):
        raise UsageError(
            f"{assignment.key} ({assignment.origin}) looks like a credential, but settings are printed and stored; "
            "use the environment or the platform's credential chain"
        )


def _unknown_key(assignment: _Assignment, keys: list[str]) -> UsageError:
    nearest = difflib.get_close_matches(assignment.key, keys, n=1, cutoff=0.0)[0]
    return UsageError(
        f"unknown setting {assignment.key} ({assignment.origin}): did you mean {nearest}? "
        f"`{COMMAND} config show` lists all"
    )


def _spark_value(assignment: _Assignment) -> str:
    value = assignment.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float) and "\n" not in str(value):
        return str(value)
    raise UsageError(
        f"{assignment.key} = {value!r} ({assignment.origin}): expected a text, a number, true or false on one line"
    )


def _checked_value(key: SettingKey, assignment: _Assignment) -> object:
    value = _convert(key.annotation, assignment)
    if value is _NOT_CONVERTIBLE or not _is_within_bounds(key, value):
        raise UsageError(f"{key.key} = {assignment.value!r} ({assignment.origin}): expected {key.allowed}")
    return value


def _is_within_bounds(key: SettingKey, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    # One comparison that must be true, so that nan is out of bounds.
    low = -math.inf if key.at_least is None else key.at_least
    high = math.inf if key.at_most is None else key.at_most
    return low <= value <= high


_NOT_CONVERTIBLE = object()


def _uri_of(assignment: _Assignment) -> object:
    value, named = assignment.value, f"{assignment.key} ({assignment.origin})"
    uri = absolute_uri(value, named, assignment.directory) if isinstance(value, str) and value else "\0"
    if "\0" in uri:
        return _NOT_CONVERTIBLE
    if assignment.key == "warehouse.uri":
        require_known_store(uri, named)
        require_same_place(uri)
    return uri


def _convert(annotation: object, assignment: _Assignment) -> object:
    value = assignment.value
    if _is_uri(annotation):
        return _uri_of(assignment)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return next((member for member in annotation if member == value), _NOT_CONVERTIBLE)
    if annotation is bool:
        return {"true": True, "false": False}.get(str(value).lower(), _NOT_CONVERTIBLE)
    if isinstance(value, bool):
        return _NOT_CONVERTIBLE
    if _is_text(annotation):
        return value if isinstance(value, str) and value and value.isprintable() else _NOT_CONVERTIBLE
    if annotation is ByteCount:
        return _byte_count(value)
    return _number(annotation, value)


def _number(annotation: object, value: object) -> object:
    try:
        return int(str(value)) if _is_whole(annotation) else float(str(value))
    except ValueError:
        return _NOT_CONVERTIBLE


def _byte_count(value: object) -> object:
    match = _BYTES.fullmatch(str(value))
    number = _number(int, match[1]) if match else _NOT_CONVERTIBLE
    if match is None or not isinstance(number, int):
        return _NOT_CONVERTIBLE
    count = number * _BYTE_UNITS[(match[2] or "").lower()]
    return ByteCount(count) if count <= _MOST_BYTES else _NOT_CONVERTIBLE


def _is_uri(annotation: object) -> bool:
    return Uri in typing.get_args(annotation)


def _is_text(annotation: object) -> bool:
    return annotation is str or str in typing.get_args(annotation)


def _is_whole(annotation: object) -> bool:
    return annotation is int or int in typing.get_args(annotation)


def _allowed(annotation: object, at_least: float | None, at_most: float | None) -> str:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(each.value for each in annotation)
    if _is_uri(annotation):
        return "a path or a URI"
    if _is_text(annotation):
        return "a text on one line"
    if annotation is bool:
        return "true or false"
    name = (
        "bytes, such as 32 MiB"
        if annotation is ByteCount
        else "a whole number"
        if _is_whole(annotation)
        else "a number"
    )
    low = "" if at_least is None else f" from {at_least:g}" if annotation is not ByteCount else f" from {at_least:.0f}"
    high = "" if at_most is None else f" to {at_most:g}" if annotation is not ByteCount else f" to {at_most:.0f}"
    return f"{name}{low}{high}"
