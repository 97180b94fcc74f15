"""Answer DescribeConfigs: what tools want to know of a topic or of the broker, all of it read only.

A topic's own settings are not in the archive. Its records are kept as long as the archive keeps them, so retention is
unlimited here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.answers.metadata import unknown_topic
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.security.rights import Rights

_TOPIC, _BROKER = 2, 4
_ALL_BROKERS = ""
"""What is set for all brokers at once: nothing."""
_DEFAULT_SOURCE, _STRING = 5, 2
_TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_BROKER_CONFIGS = {"auto.create.topics.enable": "false"}


async def answer_describe_configs(context: Context, request: Request) -> Values:
    """The settings of each topic or broker that is named."""

    def describe() -> list[Values]:
        return [_describe(context, request.rights, resource) for resource in request.body.resources]

    found = await context.find(describe)
    if found is None:
        found = [_described(resource, ErrorCode.request_timed_out, {}) for resource in request.body.resources]
    return {"results": found}


def _describe(context: Context, rights: Rights, resource: Any) -> Values:
    kind, name = int(resource.resource_type), str(resource.resource_name)
    configs: Mapping[str, str] = {}
    error = ErrorCode.none
    if kind == _TOPIC and name not in rights.topics:
        error = ErrorCode.topic_authorization_failed
    elif kind == _TOPIC:
        is_known = name in context.view.topics()
        configs, error = (_TOPIC_CONFIGS, error) if is_known else ({}, unknown_topic(name))
    elif kind == _BROKER and name == str(context.node_id):
        configs = _BROKER_CONFIGS
    elif kind != _BROKER or name != _ALL_BROKERS:
        error = ErrorCode.invalid_request
    return _described(resource, error, configs)


def _described(resource: Any, error: ErrorCode, configs: Mapping[str, str]) -> Values:
    wanted = resource.configuration_keys  # As in a broker, none and an empty list mean all.
    return {
        "error_code": error,
        "error_message": None,
        "resource_type": int(resource.resource_type),
        "resource_name": str(resource.resource_name),
        "configs": [_config(key, value) for key, value in configs.items() if not wanted or key in wanted],
    }


def _config(name: str, value: str) -> Values:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": _DEFAULT_SOURCE,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": _STRING,
        "documentation": None,
    }
