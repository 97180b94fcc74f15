"""Refuse requests that would write, and the list of access rights.

Produce is offered because librdkafka learns from its versions what a broker can do. DescribeAcls is offered because
tools show an error if the broker does not know this request.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.messages import Request

_WHY = "this is an archive, which is only read"


async def refuse_produce(context: Context, request: Request) -> Values:
    """TOPIC_AUTHORIZATION_FAILED for every partition. A producer that expects no answer (acks=0) notices the end of its
    connection, as at a broker; it would take an answer for that to another request."""
    del context
    if request.body.acks == 0:
        raise ConnectionAbortedError(_WHY)
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {
                        "index": each.index,
                        "error_code": ErrorCode.topic_authorization_failed,
                        "base_offset": -1,
                        "log_start_offset": -1,
                        "record_errors": [],
                        "error_message": _WHY,
                    }
                    for each in topic.partition_data
                ],
            }
            for topic in request.body.topic_data
        ]
    }


async def refuse_producer_id(context: Context, request: Request) -> Values:
    """CLUSTER_AUTHORIZATION_FAILED, which ends Java's producer."""
    del context, request
    return {"error_code": ErrorCode.cluster_authorization_failed, "producer_id": -1, "producer_epoch": -1}


async def refuse_acls(context: Context, request: Request) -> Values:
    """SECURITY_DISABLED without users, as a broker without an authorizer answers. With users
    CLUSTER_AUTHORIZATION_FAILED: no client may see the rights of others."""
    del request
    is_open = context.users is None
    return {
        "error_code": ErrorCode.security_disabled if is_open else ErrorCode.cluster_authorization_failed,
        "error_message": "clients have all rights" if is_open else "no client may see the rights of others",
        "resources": [],
    }
