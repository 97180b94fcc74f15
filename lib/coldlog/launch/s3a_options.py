"""s3a_options: how does Spark reach S3 with what the environment says to every other program of AWS?

Endpoint, region and path style (`coldlog.archive.stores.s3_environment`) are handed to Hadoop's S3A. Credentials are
not: S3A asks the SDK's default chain where it needs them, on the driver and on each executor, so that they stand in no
option, plan or log.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.archive.stores.s3_environment import DEFAULT_REGION, s3_endpoint
from coldlog.errors import UsageError

LOG_STORE = {"spark.delta.logStore.s3a.impl": "coldlog.ConditionalPutLogStore"}
"""Commits of several drivers cannot overwrite each other."""

_PREFIX = "spark.hadoop.fs.s3a."
_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_SECRETS = ("access.key", "secret.key", "session.token", "encryption.key", "proxy.password")


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Options are logged, shown and shipped."""
    for key in options:
        if key.startswith(_PREFIX) and key.endswith(_SECRETS):
            raise UsageError(
                f"{key} does not belong into settings, which are shown and shipped; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment of driver and executors, or AWS_PROFILE"
            )


def s3a_options() -> dict[str, str]:
    """Spark's options for `s3a://`."""
    endpoint = s3_endpoint()
    options = {"aws.credentials.provider": _PROVIDER, "path.style.access": str(endpoint.is_path_style).lower()}
    if endpoint.url is not None:
        options["endpoint"] = endpoint.url
    if endpoint.url is not None or endpoint.region is not None:
        options["endpoint.region"] = endpoint.region or DEFAULT_REGION
    return {_PREFIX + key: value for key, value in options.items()}


def executor_s3_place() -> dict[str, str]:
    """Spark's options by which Python workers, which write index files, mean the S3 that S3A means."""
    endpoint = s3_endpoint()
    place = {"AWS_ENDPOINT_URL_S3": endpoint.url, "AWS_REGION": endpoint.region}
    return {f"spark.executorEnv.{name}": value for name, value in place.items() if value is not None}
