"""s3_environment: which S3 do the environment and the AWS profile mean, and who asks it?

As for every program that uses AWS's libraries: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_PROFILE`,
`AWS_ACCESS_KEY_ID`, `~/.aws/config` (`s3 = addressing_style = path`) and what else botocore reads. Nothing of it is
kept: it is read in each process that needs it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coldlog.errors import UsageError

if TYPE_CHECKING:
    from botocore.exceptions import PartialCredentialsError
    from s3fs import S3FileSystem

DEFAULT_REGION = "us-east-1"
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Endpoint:
    """`url` is None for Amazon's own, which the region tells; `region` is None where nothing names one."""

    url: str | None
    region: str | None
    is_path_style: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class S3Credentials:
    """What is only handed to a library, and never shown or pickled."""

    access_key: str
    secret_key: str
    token: str | None

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials are not pickled; ask for them where they are used")


def s3_endpoint() -> S3Endpoint:
    """The endpoint of this process's environment; `UsageError` for settings of AWS that cannot be used."""
    client = create_s3_client()
    host = client.meta.endpoint_url.partition("://")[2].partition("/")[0].partition(":")[0]
    is_amazon = host.endswith(_AMAZON)
    style = (client.meta.config.s3 or {}).get("addressing_style")
    region = client.meta.region_name
    return S3Endpoint(
        url=None if is_amazon else client.meta.endpoint_url,
        region=None if region == "aws-global" else region,
        # A server of one's own seldom has a name for each bucket.
        is_path_style=style == "path" or (not is_amazon and style != "virtual"),
    )


def create_s3_client() -> Any:
    """botocore's client for S3, by this process's environment."""
    # Only those who use S3 wait for it.
    from botocore.exceptions import BotoCoreError, PartialCredentialsError
    from botocore.session import Session

    try:
        # botocore knows AWS_DEFAULT_REGION alone; the other libraries, and Amazon's own services, say AWS_REGION.
        return Session().create_client("s3", region_name=os.environ.get("AWS_REGION"))
    except PartialCredentialsError as failed:
        raise _half_of_credentials(failed) from None
    except (BotoCoreError, ValueError) as failed:
        raise UsageError(
            f"AWS's settings in the environment or the profile cannot be used ({type(failed).__name__}); "
            "look at AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL and ~/.aws/config"
        ) from None


def create_s3_file_system(**config: object) -> S3FileSystem:
    """s3fs by this process's environment, shared with nobody; `config` is botocore's.

    It refreshes credentials that are temporary, and must not be used in a forked child of this process.
    """
    from s3fs import S3FileSystem

    region = os.environ.get("AWS_REGION", "")  # see create_s3_client
    style = {"s3": {"addressing_style": "path"}} if s3_endpoint().is_path_style else {}
    return S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        client_kwargs={"region_name": region} if region else {},
        config_kwargs={**style, **config},
    )


def s3_credentials() -> S3Credentials | None:
    """The credentials of this process's environment, refreshed where they are temporary; None where there are none."""
    from botocore.exceptions import BotoCoreError, PartialCredentialsError
    from botocore.session import Session

    try:
        found = Session().get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except PartialCredentialsError as failed:
        raise _half_of_credentials(failed) from None
    except BotoCoreError as failed:
        raise UsageError(
            f"AWS's credentials cannot be used ({type(failed).__name__}); look at AWS_PROFILE and ~/.aws"
        ) from None
    if frozen is None:
        return None
    return S3Credentials(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)


def _half_of_credentials(failed: PartialCredentialsError) -> UsageError:
    # Its fields are the name of the place and of what is missing there, no values.
    provider, missing = (str(failed.kwargs.get(name, "?")) for name in ("provider", "cred_var"))
    return UsageError(
        f"no credentials for S3: those of the {provider} lack {missing.upper()}; "
        "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together, or neither"
    )
