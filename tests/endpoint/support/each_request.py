"""each_request: a request of each kind, to be mutated or sent by clients with other rights."""

from __future__ import annotations

from datetime import timedelta

from endpoint.support.raw_client import fetch, framed, list_offsets, message

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def each_request() -> list[bytes]:
    """One request of each kind, framed. They name topics `orders` and `payments`, and the group `group`."""
    named = message(3, 12, "MetadataRequestTopic", topic_id=None, name="orders")
    epoch = message(23, 4, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0)
    epochs = message(23, 4, "OffsetForLeaderTopic", topic="orders", partitions=(epoch,))
    resource = message(
        32, 4, "DescribeConfigsResource", resource_type=2, resource_name="orders", configuration_keys=None
    )
    topic = message(75, 0, "TopicRequest", name="orders")
    sized = message(35, 4, "DescribableLogDirTopic", topic="orders", partitions=(0,))
    return [
        framed(18, 3, message(18, 3, "ApiVersionsRequest", client_software_name="a", client_software_version="1")),
        framed(3, 12, message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)),
        framed(2, 11, list_offsets([("orders", 0, 1), ("payments", 1, -1)], timeout_ms=1000)),
        framed(1, 12, fetch(12, [("orders", 0, 0), ("payments", 1, 3)], max_wait_ms=0)),
        framed(1, 4, fetch(4, [("orders", 0, 5)], max_wait_ms=0)),
        framed(22, 3, message(22, 3, "InitProducerIdRequest", transactional_id=None, transaction_timeout=timedelta(1))),
        framed(60, 1, message(60, 1, "DescribeClusterRequest", include_cluster_authorized_operations=False)),
        framed(3, 12, message(3, 12, "MetadataRequest", topics=(named,), include_topic_authorized_operations=False)),
        framed(23, 4, message(23, 4, "OffsetForLeaderEpochRequest", replica_id=-1, topics=(epochs,))),
        framed(32, 4, message(32, 4, "DescribeConfigsRequest", resources=(resource,), include_synonyms=False)),
        framed(75, 0, message(75, 0, "DescribeTopicPartitionsRequest", topics=(topic,), response_partition_limit=9)),
        framed(35, 4, message(35, 4, "DescribeLogDirsRequest", topics=(sized,))),
        framed(29, 3, message(29, 3, "DescribeAclsRequest", **ANY_ACL)),
        *_group_requests(),
    ]


def _group_requests() -> list[bytes]:
    """Requests of groups; the member joins without being given an id first."""
    protocol = {"name": "range", "metadata": b"\0\0\0\0\0\1\0\6orders"}
    joining = {"group_id": "group", "member_id": "", "protocol_type": "consumer"}
    session = {"session_timeout": timedelta(seconds=6), "rebalance_timeout": timedelta(seconds=6)}
    member = {"group_id": "group", "generation_id": 1, "member_id": "raw", "group_instance_id": None}
    committed = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}
    commit = message(8, 9, "OffsetCommitRequestPartition", **committed)
    commits = message(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(commit,))
    identity = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    removal = message(47, 0, "OffsetDeleteRequestPartition", partition_index=0)
    removals = message(47, 0, "OffsetDeleteRequestTopic", name="orders", partitions=(removal,))
    return [
        framed(10, 4, message(10, 4, "FindCoordinatorRequest", key_type=0, coordinator_keys=("group",))),
        framed(
            11,
            2,
            message(
                11,
                2,
                "JoinGroupRequest",
                **joining,
                **session,
                protocols=(message(11, 2, "JoinGroupRequestProtocol", **protocol),),
            ),
        ),
        framed(12, 4, message(12, 4, "HeartbeatRequest", **member)),
        framed(13, 0, message(13, 0, "LeaveGroupRequest", group_id="group", member_id="raw")),
        framed(
            14, 5, message(14, 5, "SyncGroupRequest", **member, protocol_type=None, protocol_name=None, assignments=())
        ),
        framed(8, 9, message(8, 9, "OffsetCommitRequest", group_id="group", **identity, topics=(commits,))),
        framed(9, 5, message(9, 5, "OffsetFetchRequest", group_id="group", topics=None)),
        framed(15, 5, message(15, 5, "DescribeGroupsRequest", groups=("group",), include_authorized_operations=False)),
        framed(16, 5, message(16, 5, "ListGroupsRequest", states_filter=(), types_filter=())),
        framed(42, 2, message(42, 2, "DeleteGroupsRequest", groups_names=("group",))),
        framed(47, 0, message(47, 0, "OffsetDeleteRequest", group_id="group", topics=(removals,))),
        framed(17, 1, message(17, 1, "SaslHandshakeRequest", mechanism="PLAIN")),
        framed(36, 2, message(36, 2, "SaslAuthenticateRequest", auth_bytes=b"\0user\0password")),
    ]
