"""Turn a failed request to S3 into an error of coldlog.

| failure | error |
|---|---|
| 429, 500, 502, 503, 504, a code of throttling, a lost connection, a time-out, a body cut short | RetriableError |
| an answer that is damaged, from another server, or to another request | RetriableError |
| 404, the bucket is there | ArchiveError, OBJECT_MISSING |
| 403 for an object; an object that must be restored first | ArchiveError, OBJECT_UNREADABLE |
| 403 or another refusal of a write | UsageError |
| 412: the object was replaced while it was read | ArchiveError, OBJECT_UNREADABLE |
| 403 for a listing, no bucket; credentials expired, wrong or missing; another region; a wrong profile | UsageError |

Messages of S3 and botocore are never repeated: they may contain key ids, signatures and signed addresses. Errors show
only the status and the code (a short identifier) of an answer, and host and port of the endpoint. For the same reason
these errors are raised without their cause.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from functools import cache
from typing import Any

from coldlog.archive.stores.object_names import printable_name
from coldlog.archive.stores.s3_environment import endpoint_address, endpoint_setting, shown_address
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError

_RETRIABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_RETRIABLE_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "InternalError",
        "LimitExceededException",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_REFUSED_KEY_CODES = frozenset(
    {
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "XAdminUserNotFound",  # of versitygw, with status 404
    }
)
_REGION_CODES = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed", "IncorrectEndpoint"}
)
_MISSING_CODES = frozenset({"", "404", "NoSuchKey", "NoSuchVersion", "NotFound"})
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}")

_WHERE_CREDENTIALS_ARE = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of the machine, on every worker alike"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """The exceptions of botocore and aiohttp, by their meaning."""

    answer: type[Exception]
    of_botocore: type[Exception]
    no_answer: tuple[type[Exception], ...]
    no_credentials: tuple[type[Exception], ...]
    not_fetched: tuple[type[Exception], ...]
    not_logged_in: tuple[type[Exception], ...]
    no_profile: type[Exception]
    no_trust: type[Exception]
    wrong_checksum: type[Exception]
    no_proxy: type[Exception]


@cache
def _kinds() -> _Kinds:
    """Import both packages only when a request has failed: this module is imported by all that reads tables."""
    import aiohttp
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    return _Kinds(
        answer=exceptions.ClientError,
        of_botocore=exceptions.BotoCoreError,
        no_answer=(
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            exceptions.IncompleteReadError,
            exceptions.ResponseStreamingError,
            ResponseParserError,
            aiohttp.ClientError,
            TimeoutError,
            OSError,
        ),
        no_credentials=(
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.NoAuthTokenError,
        ),
        not_fetched=(exceptions.CredentialRetrievalError, exceptions.MetadataRetrievalError),
        not_logged_in=(exceptions.SSOError, exceptions.TokenRetrievalError),
        no_profile=exceptions.ProfileNotFound,
        no_trust=exceptions.SSLError,
        wrong_checksum=exceptions.FlexibleChecksumError,
        no_proxy=exceptions.ProxyConnectionError,
    )


class BodyCutError(Exception):
    """An answer's body ended before its announced length."""


class DamagedAnswerError(Exception):
    """The answer is damaged or not S3's; the message says in coldlog's words what was received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Target:
    """The target of a request: the archive, and the object relative to its root (empty for a listing). `is_write`: the
    request writes or deletes the object."""

    uri: str
    bucket: str
    object_name: str = ""
    is_write: bool = False

    @property
    def label(self) -> str:
        """For messages."""
        return f"{printable_name(self.object_name)} of {self.uri}" if self.object_name else self.uri


def error_for(failure: Exception, target: S3Target) -> ColdlogError:
    """The error for a failed request; a `RetriableError` if a later request may succeed. An exception that is not a
    failed request is raised unchanged."""
    if isinstance(failure, ColdlogError):
        return failure
    if isinstance(failure, _kinds().answer):
        return _error_for_answer(failure, target)
    damage = _damage_of(failure)
    if damage:
        return _retriable(target, f"was answered with {damage}{_from_endpoint(failure)}")
    if not isinstance(failure, (BodyCutError, _kinds().of_botocore, ValueError, *_kinds().no_answer)):
        raise failure
    return _error_for_exception(failure, target)


def replaced(target: S3Target) -> ArchiveError:
    """The error for an object that was replaced while it was being read."""
    return ArchiveError(
        Reason.OBJECT_UNREADABLE,
        "object was replaced while it was read",
        object_name=printable_name(target.object_name),
        expected="the version of the first request",
        found="another version",
    )


def status_of(failure: BaseException | None) -> int:
    """The HTTP status of the answer; 0 if there was no answer."""
    status = _answer_of(failure).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def answer_within(failure: Exception) -> Exception:
    """The failure with S3's answer: s3fs wraps it in an OSError."""
    cause = failure.__cause__
    return cause if isinstance(cause, Exception) and status_of(cause) else failure


def are_credentials_refused(failure: Exception) -> bool:
    """The credentials are missing or not accepted; new ones may exist now."""
    are_missing = isinstance(failure, (*_kinds().no_credentials, *_kinds().not_logged_in))
    return are_missing or _code_of(failure) in _EXPIRED_CODES | _REFUSED_KEY_CODES


def has_status_only(failure: Exception) -> bool:
    """The answer has no code but its status: an answer to HEAD has no body."""
    return 400 <= status_of(failure) < 500 and _code_of(failure) in ("", str(status_of(failure)))


def _error_for_answer(failure: Exception, target: S3Target) -> ColdlogError:
    status, code = status_of(failure), _code_of(failure)
    if status in _RETRIABLE_STATUS or code in _RETRIABLE_CODES:
        return _retriable(target, f"was answered {_shown(failure)}")
    credentials = _credentials_error(failure, target)
    if credentials is not None:
        return credentials
    if code == "NoSuchBucket":
        return _no_bucket(target)
    if not target.object_name:
        return _listing_error(failure, target)
    if target.is_write:
        return _write_error(failure, target)
    return _object_error(failure, target)


def _credentials_error(failure: Exception, target: S3Target) -> UsageError | None:
    code, status = _code_of(failure), status_of(failure)
    if code in _EXPIRED_CODES:
        return UsageError(
            f"the credentials for {target.uri} have expired ({code}); renew them: {_WHERE_CREDENTIALS_ARE}"
        )
    if code in _REFUSED_KEY_CODES:
        return UsageError(
            f"the credentials for {target.uri} are not accepted ({code}), or a proxy changes signed requests; correct "
            f"{_WHERE_CREDENTIALS_ARE}"
        )
    if code == "RequestTimeTooSkewed":
        return UsageError(f"S3 refuses requests for {target.uri} ({code}); correct the clock of this machine")
    if code in _REGION_CODES or status in (301, 302, 307, 308):
        region = _region_of(failure)
        where = f" ({region})" if region else ""
        return UsageError(
            f"the bucket {target.bucket} is in another region{where}; set AWS_REGION, or the endpoint "
            f"({endpoint_setting()}) of that region [{_shown(failure)}]"
        )
    return None


def _listing_error(failure: Exception, target: S3Target) -> ColdlogError:
    if status_of(failure) == 403:
        return UsageError(
            f"no permission to list {target.uri} ({_shown(failure)}); allow s3:ListBucket on the bucket "
            f"{target.bucket} to the principal of {_WHERE_CREDENTIALS_ARE}"
        )
    if status_of(failure) == 404 and _code_of(failure) in _MISSING_CODES:
        return _no_bucket(target)
    return UsageError(f"{target.uri} cannot be listed: S3 answers {_shown(failure)}")


def _no_bucket(target: S3Target) -> UsageError:
    return UsageError(f"no bucket {target.bucket}: correct {target.uri}, or the endpoint ({endpoint_setting()})")


def _write_error(failure: Exception, target: S3Target) -> UsageError:
    if status_of(failure) == 403:
        return UsageError(
            f"no permission to write {target.label} ({_shown(failure)}); allow s3:PutObject, s3:DeleteObject and "
            f"s3:AbortMultipartUpload on the bucket {target.bucket} to the principal of {_WHERE_CREDENTIALS_ARE}"
        )
    return UsageError(f"{target.label} cannot be written: S3 answers {_shown(failure)}")


def _object_error(failure: Exception, target: S3Target) -> ColdlogError:
    status, code, name = status_of(failure), _code_of(failure), printable_name(target.object_name)
    if status == 404 and code not in _MISSING_CODES:
        return UsageError(f"{target.label} cannot be requested: S3 answers {_shown(failure)}")
    if status == 404:
        return ArchiveError(Reason.OBJECT_MISSING, "the archive has no such object", object_name=name)
    if status == 412:
        return replaced(target)
    message, expected = "object cannot be read", ""
    if code == "InvalidObjectState":
        message, expected = "object is in a cold storage class", "a restored object"
    elif status == 403:
        expected = (
            f"permission s3:GetObject, and kms:Decrypt for an encrypted object, for the principal of "
            f"{_WHERE_CREDENTIALS_ARE} (without permission s3:ListBucket, S3 answers the same for a missing object)"
        )
    return ArchiveError(
        Reason.OBJECT_UNREADABLE, message, object_name=name, expected=expected, found=f"S3 answers {_shown(failure)}"
    )


def _error_for_exception(failure: Exception, target: S3Target) -> ColdlogError:
    kind = type(failure).__name__
    if isinstance(failure, _kinds().no_credentials):
        return UsageError(f"no credentials for {target.uri}; set {_WHERE_CREDENTIALS_ARE}")
    if isinstance(failure, _kinds().not_logged_in):
        return UsageError(f"the login for the credentials of {target.uri} has expired ({kind}); log in again")
    if isinstance(failure, _kinds().no_profile):
        return UsageError(f"no AWS configuration file has the profile in AWS_PROFILE for {target.uri}; correct it")
    if isinstance(failure, _kinds().no_trust):
        return UsageError(f"the certificate of the endpoint of {target.uri} is not trusted; check AWS_CA_BUNDLE")
    if isinstance(failure, BodyCutError):
        return _retriable(target, "was answered with a body that was cut")
    if isinstance(failure, _kinds().no_answer):
        return _retriable(target, f"got no answer ({kind}){_from_endpoint(failure)}")
    if isinstance(failure, _kinds().not_fetched):
        return _retriable(target, f"needs credentials that could not be fetched ({kind})")
    return UsageError(
        f"requests for {target.uri} cannot be sent: {kind}; check the AWS_ variables and the AWS configuration files"
    )


def _retriable(target: S3Target, result: str) -> RetriableError:
    return RetriableError(f"the request for {target.label} {result}; try again")


def _damage_of(failure: Exception) -> str:
    """What was received, if a complete answer is damaged; otherwise empty."""
    if isinstance(failure, DamagedAnswerError):
        return str(failure)
    if isinstance(failure, _kinds().wrong_checksum):
        return "a body that does not match its checksum"
    # Errors of int and datetime in botocore's parser are damage too; a ValueError for a setting occurs outside of it.
    modules = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(failure.__traceback__))
    return f"content that is not S3's ({type(failure).__name__})" if "botocore.parsers" in modules else ""


def _from_endpoint(failure: Exception) -> str:
    """The endpoint, for messages: a wrong endpoint looks like one that is down."""
    if isinstance(failure, _kinds().no_proxy):
        return ""
    url = getattr(failure, "kwargs", {}).get("endpoint_url", "")
    address = shown_address(str(url)) if url else endpoint_address()
    return f" from {address}; if that is the wrong server, correct {endpoint_setting()}" if address else ""


def _code_of(failure: Exception) -> str:
    return str(_answer_of(failure).get("Error", {}).get("Code", ""))


def _answer_of(failure: BaseException | None) -> dict[str, Any]:
    """The answer of S3; empty if there was none."""
    response = getattr(failure, "response", None)
    # First the cheap question: without a bucket, the packages of S3 need not be there.
    return response if response is not None and isinstance(failure, _kinds().answer) else {}


def _shown(failure: Exception) -> str:
    code = _code_of(failure)
    return f"HTTP {status_of(failure)} {code}".rstrip() if _IDENTIFIER.fullmatch(code) else f"HTTP {status_of(failure)}"


def _region_of(failure: Exception) -> str:
    answer = _answer_of(failure)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or answer.get("Error", {}).get("Region", "")
    return region if isinstance(region, str) and _REGION.fullmatch(region) else ""
