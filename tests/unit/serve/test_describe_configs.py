"""Test which settings of the broker a client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from coldlog.serve.answers.configs import answer_describe_configs
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.messages import Request
from coldlog.serve.threads import Threads
from endpoint_context import endpoint_context

BROKER = 4


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (None, ["auto.create.topics.enable"]),
        ((), ["auto.create.topics.enable"]),
        (("auto.create.topics.enable", "x"), ["auto.create.topics.enable"]),
        (("x",), []),
    ],
)
def test_no_keys_and_an_empty_list_of_keys_ask_for_all_settings(keys: Sequence[str] | None, names: list[str]) -> None:
    async def ask() -> Any:
        asked = SimpleNamespace(resource_type=BROKER, resource_name="1", configuration_keys=keys)
        body = SimpleNamespace(resources=[asked])
        request = Request(api_key=32, version=4, correlation_id=0, client_id=None, body=body)
        return await answer_describe_configs(endpoint_context(cast(ArchiveView, None), threads), request)

    with closing(Threads("test", 1)) as threads:
        (found,) = asyncio.run(ask())["results"]
    assert found["error_code"] is ErrorCode.none
    assert [each["name"] for each in found["configs"]] == names
