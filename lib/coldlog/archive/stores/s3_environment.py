"""Find endpoint, region and credentials of S3 in the environment and the AWS profile.

As in every program that uses AWS's libraries: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_PROFILE`,
`AWS_ACCESS_KEY_ID`, `~/.aws/config` (`s3 = addressing_style = path`) and everything else that botocore reads. Each
process reads them for itself, and again when a variable or a file of them changes.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from coldlog.errors import UsageError

if TYPE_CHECKING:
    from botocore.exceptions import PartialCredentialsError
    from botocore.session import Session
    from s3fs import S3FileSystem

DEFAULT_REGION = "us-east-1"
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SHARED_CONNECTIONS = 64
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Endpoint:
    """An endpoint; `url` is None for Amazon's own, which follows from the region; `region` is None if not
    configured."""

    url: str | None
    region: str | None
    is_path_style: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class S3Credentials:
    """Credentials that are only passed to a library, and never shown or pickled."""

    access_key: str
    secret_key: str
    token: str | None

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials cannot be pickled; read them in the process that uses them")


def s3_endpoint() -> S3Endpoint:
    """The endpoint of this process's environment; `UsageError` for AWS settings that cannot be used."""
    client = s3_client()
    host = client.meta.endpoint_url.partition("://")[2].partition("/")[0].partition(":")[0]
    is_amazon = host.endswith(_AMAZON)
    style = (client.meta.config.s3 or {}).get("addressing_style")
    region = client.meta.region_name
    return S3Endpoint(
        url=None if is_amazon else client.meta.endpoint_url,
        region=None if region == "aws-global" else region,
        # A private server rarely has a host name for each bucket.
        is_path_style=style == "path" or (not is_amazon and style != "virtual"),
    )


def endpoint_setting() -> str:
    """The name of the setting that selects the endpoint; if none is set, the settings that could."""
    return _endpoint_variable() or "AWS_ENDPOINT_URL_S3, or endpoint_url of the profile"


def endpoint_address() -> str:
    """Host and port in the environment, for messages; empty if there are none."""
    variable = _endpoint_variable()
    return shown_address(os.environ[variable]) if variable else ""


def shown_address(url: str) -> str:
    """Only host and port of a url; empty if a part of a secret could be mistaken for them."""
    parts = _split_url(url)
    # If a password contains a slash, the host is parsed as part of the path, and a piece of the password as the host.
    if parts is None or "@" in url.replace(parts.netloc, "", 1) or not _HOST.fullmatch(parts.hostname or ""):
        return ""
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
    return host if parts.port is None else f"{host}:{parts.port}"


def s3_client() -> Any:
    """botocore's client for S3, configured by this process's environment, for any number of threads.

    A new one costs 20 ms of a processor, and has connections of its own.
    """
    return _shared_s3_client(*_environment_state())


@lru_cache(maxsize=4)
def _shared_s3_client(*_: object) -> Any:
    return open_s3_client()


def open_s3_client() -> Any:
    """Another client than all others, with connections of its own."""
    # Imported here, so that only users of S3 wait for the import.
    from botocore.exceptions import BotoCoreError, PartialCredentialsError

    variable, aws = _endpoint_variable(), _aws_session()
    if variable:
        _require_endpoint(os.environ[variable], variable)
    try:
        with aws.lock:
            # botocore reads only AWS_DEFAULT_REGION; other libraries and Amazon's services use AWS_REGION.
            return aws.session.create_client("s3", region_name=os.environ.get("AWS_REGION"))
    except PartialCredentialsError as failed:
        raise _partial_credentials(failed) from None
    except (BotoCoreError, ValueError) as failed:
        if not isinstance(failed, BotoCoreError):
            _require_endpoint(aws.session.get_scoped_config().get("endpoint_url", ""), "endpoint_url of the profile")
        raise UsageError(
            f"AWS's settings in the environment or the profile cannot be used ({type(failed).__name__}); "
            "check AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL and ~/.aws/config"
        ) from None


def create_s3_file_system(**config: object) -> S3FileSystem:
    """A new s3fs file system, configured by this process's environment; `config` is botocore's.

    It refreshes temporary credentials, and must not be used in a forked child of this process.
    """
    from s3fs import S3FileSystem

    region = os.environ.get("AWS_REGION", "")  # see open_s3_client
    style = {"s3": {"addressing_style": "path"}} if s3_endpoint().is_path_style else {}
    return S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        client_kwargs={"region_name": region} if region else {},
        config_kwargs={**style, **config},
    )


def shared_s3_file_system() -> S3FileSystem:
    """The s3fs file system of this process's environment, for any number of threads.

    A new one parses a megabyte of JSON, and has connections of its own.
    """
    return _create_shared_file_system(*_environment_state())


@lru_cache(maxsize=4)
def _create_shared_file_system(*_: object) -> S3FileSystem:
    return create_s3_file_system(max_pool_connections=_SHARED_CONNECTIONS)


def s3_credentials() -> S3Credentials | None:
    """The credentials of this process's environment, refreshed if they are temporary; None if there are none."""
    from botocore.exceptions import BotoCoreError, PartialCredentialsError

    aws = _aws_session()
    try:
        with aws.lock:
            found = aws.session.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except PartialCredentialsError as failed:
        raise _partial_credentials(failed) from None
    except BotoCoreError as failed:
        raise UsageError(
            f"AWS's credentials cannot be used ({type(failed).__name__}); check AWS_PROFILE and ~/.aws"
        ) from None
    if frozen is None:
        return None
    return S3Credentials(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)


@dataclass(frozen=True, slots=True, eq=False)
class _AwsSession:
    """botocore's session, which threads must not use at the same time."""

    session: Session
    lock: threading.Lock = field(default_factory=threading.Lock)


def _aws_session() -> _AwsSession:
    """The session of this process's environment.

    A new session parses a megabyte of JSON: a client costs 90 ms of CPU time with it, and 3 ms with one that was used.
    """
    return _create_aws_session(*_environment_state())


def _environment_state() -> tuple[object, ...]:
    """What a session is made from. If it changes, another session is needed."""
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_") or item[0] == "HOME"))
    files = (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    # A forked child must not share the locks of its parent's threads.
    return os.getpid(), variables, tuple(map(_file_state, files))


@lru_cache(maxsize=4)
def _create_aws_session(*_: object) -> _AwsSession:
    from botocore.session import Session

    return _AwsSession(Session())


def _file_state(name: str) -> tuple[int, int, int] | None:
    try:
        state = Path(name).expanduser().stat()
    except (OSError, RuntimeError):
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _endpoint_variable() -> str:
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    return next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), "")


def _require_endpoint(url: str, setting: str) -> None:
    from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url

    parts = _split_url(url)
    is_address = parts is not None and parts.scheme in ("http", "https")
    if url and not (is_address and (is_valid_endpoint_url(url) or is_valid_ipv6_endpoint_url(url))):
        raise UsageError(f"{setting} is not the address of an S3 server; use http://host:port or https://host")


def _split_url(url: str) -> SplitResult | None:
    """The parts of a url; None without a host, or with an invalid port."""
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _partial_credentials(failed: PartialCredentialsError) -> UsageError:
    # The fields hold names only: the provider and the missing variable. They hold no values.
    provider, missing = (str(failed.kwargs.get(name, "?")) for name in ("provider", "cred_var"))
    return UsageError(
        f"no credentials for S3: {missing.upper()} is missing in the {provider}; "
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together, or neither"
    )
