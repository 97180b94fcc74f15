"""Make Spark's options for S3 from the environment that every AWS program reads.

Endpoint, region and path style (`coldlog.archive.stores.s3_environment`) are passed to Hadoop's S3A. Credentials are
not passed: S3A gets them from the SDK's default chain, on the driver and on each executor. So no option, plan or log
holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.archive.stores.s3_environment import DEFAULT_REGION, s3_endpoint
from coldlog.errors import UsageError

LOG_STORE = {
    "spark.delta.logStore.s3a.impl": "coldlog.ConditionalPutLogStore",
    "spark.delta.logStore.file.impl": "coldlog.SynchronizedLogStore",
}
"""With these log stores, several drivers cannot overwrite each other's commits, and those in a folder last."""

_PREFIX = "spark.hadoop.fs.s3a."
_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_SECRETS = ("access.key", "secret.key", "session.token", "encryption.key", "proxy.password")


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise `UsageError` if an option holds a secret: options are logged, shown and shipped."""
    for key in options:
        if key.startswith(_PREFIX) and key.endswith(_SECRETS):
            raise UsageError(
                f"{key} must not be a setting, because settings are shown and shipped; set AWS_ACCESS_KEY_ID and "
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
    """Spark's options that give Python workers, which write index files, the same S3 endpoint as S3A."""
    endpoint = s3_endpoint()
    place = {"AWS_ENDPOINT_URL_S3": endpoint.url, "AWS_REGION": endpoint.region}
    return {f"spark.executorEnv.{name}": value for name, value in place.items() if value is not None}
