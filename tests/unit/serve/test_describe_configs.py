"""Test which settings of the broker and of a topic a client gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from asked_endpoint import asked, part
from coldlog.serve.context import Context
from coldlog.serve.security.rights import Names, Rights
from worlds.named_topics import named_topics

TOPIC, BROKER, GROUP = 2, 4, 32
NONE, UNKNOWN, INVALID_TOPIC, UNAUTHORIZED, INVALID_REQUEST = 0, 3, 17, 29, 42
OF_BROKER = ["auto.create.topics.enable"]
OF_TOPIC = ["cleanup.policy", "retention.ms", "retention.bytes"]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with named_topics(tmp_path_factory.mktemp("topics"), {"orders": 1, "hidden": 1}) as made:
        yield made


def _describe(context: Context, kind: int, name: str, keys: Sequence[str] | None = None) -> tuple[int, list[str]]:
    """Return the error and the names of the settings, as a client gets them that may not see the topic `hidden`."""
    wanted = None if keys is None else tuple(keys)
    resource = part(32, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=wanted)
    rights = Rights(topics=Names(literal=frozenset({"orders", "none", "no topic"})), groups=Names(prefixes=("",)))
    answer = asked(context, part(32, 4, "DescribeConfigsRequest", resources=(resource,)), rights)
    (found,) = answer.results
    assert (found.resource_type, found.resource_name) == (kind, name)
    return int(found.error_code), [each.name for each in found.configs]


@pytest.mark.parametrize(
    ("keys", "names"), [(None, OF_BROKER), ((), OF_BROKER), ((*OF_BROKER, "x"), OF_BROKER), (("x",), [])]
)
def test_no_keys_and_an_empty_list_of_keys_ask_for_all_settings(
    context: Context, keys: Sequence[str] | None, names: list[str]
) -> None:
    assert _describe(context, BROKER, "1", keys) == (NONE, names)


def test_nothing_is_set_for_all_brokers_at_once(context: Context) -> None:
    """Tools ask for the settings of the broker without a name (`kafka-configs.sh --entity-default`)."""
    assert _describe(context, BROKER, "") == (NONE, [])
    assert _describe(context, BROKER, "2") == (INVALID_REQUEST, [])
    assert _describe(context, GROUP, "group") == (INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", (NONE, OF_TOPIC)),
        ("none", (UNKNOWN, [])),
        ("no topic", (INVALID_TOPIC, [])),
        ("hidden", (UNAUTHORIZED, [])),
        ("not hidden", (UNAUTHORIZED, [])),
    ],
)
def test_a_topic_that_is_unknown_or_hidden_has_an_error(
    context: Context, name: str, expected: tuple[int, list[str]]
) -> None:
    assert _describe(context, TOPIC, name) == expected
