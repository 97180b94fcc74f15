"""s3_failures: what does it mean that S3 did not do as asked, and may it be asked again?

| what came | what it is |
|---|---|
| 429, 500, 502, 503, 504, a code of throttling, a lost connection, a time-out, a body cut short | RetriableError |
| an answer that is damaged, of another server, or to another question | RetriableError |
| 404, the bucket is there | ArchiveError, OBJECT_MISSING |
| 403 for an object; one that has to be restored first | ArchiveError, OBJECT_UNREADABLE |
| 403 or another refusal of a write | UsageError |
| 412: the object was replaced while it was read | ArchiveError, OBJECT_UNREADABLE |
| 403 for a listing, no bucket; credentials expired, wrong or none; another region; a wrong profile | UsageError |

What S3 or botocore say in words is never repeated: their messages and fields may hold key ids, signatures and signed
addresses. Of an answer only its status and its code, a short identifier, are shown, and of the endpoint that was asked
host and port. For the same reason the errors made here are raised without their cause.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from dataclasses import dataclass

import aiohttp
from botocore import exceptions as botocore_exceptions
from botocore.parsers import ResponseParserError

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

_NO_ANSWER = (
    botocore_exceptions.HTTPClientError,
    botocore_exceptions.ConnectionError,
    botocore_exceptions.IncompleteReadError,
    botocore_exceptions.ResponseStreamingError,
    ResponseParserError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)
_NO_CREDENTIALS = (
    botocore_exceptions.NoCredentialsError,
    botocore_exceptions.PartialCredentialsError,
    botocore_exceptions.NoAuthTokenError,
)
_NOT_FETCHED = (
    botocore_exceptions.CredentialRetrievalError,
    botocore_exceptions.MetadataRetrievalError,
)
_NOT_LOGGED_IN = (botocore_exceptions.SSOError, botocore_exceptions.TokenRetrievalError)
_WHERE_CREDENTIALS_ARE = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the role of the machine, on every worker alike"
)


class BodyCutError(Exception):
    """An answer's body ended before the bytes that it promised."""


class DamagedAnswerError(Exception):
    """What came in place of an answer, in coldlog's words: nothing of it is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked: of which archive, and of which object, relative to its root; a listing is of none. `is_write`:
    the object was to be put or deleted."""

    uri: str
    bucket: str
    object_name: str = ""
    is_write: bool = False

    @property
    def what(self) -> str:
        """For messages."""
        return f"{printable_name(self.object_name)} of {self.uri}" if self.object_name else self.uri


def error_for(failure: Exception, asked: Asked) -> ColdlogError:
    """What a failed request means; a `RetriableError` where it may be asked again. What is no failure of a request is
    raised as it is."""
    if isinstance(failure, ColdlogError):
        return failure
    if isinstance(failure, botocore_exceptions.ClientError):
        return _error_for_answer(failure, asked)
    damage = _damage_of(failure)
    if damage:
        return _retriable(asked, f"was answered with {damage}{_from_whom(failure)}")
    if not isinstance(failure, (BodyCutError, botocore_exceptions.BotoCoreError, ValueError, *_NO_ANSWER)):
        raise failure
    return _error_for_exception(failure, asked)


def replaced(asked: Asked) -> ArchiveError:
    """The object is not the one any more whose reading began."""
    return ArchiveError(
        Reason.OBJECT_UNREADABLE,
        "object was replaced while it was read",
        object_name=printable_name(asked.object_name),
        expected="the content that the first request met",
        found="another",
    )


def status_of(failure: BaseException | None) -> int:
    """The HTTP status that S3 answered with; 0 where there was no answer."""
    if not isinstance(failure, botocore_exceptions.ClientError):
        return 0
    status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def answer_within(failure: Exception) -> Exception:
    """What S3 said: s3fs makes an OSError of it."""
    cause = failure.__cause__
    return cause if isinstance(cause, Exception) and status_of(cause) else failure


def are_credentials_refused(failure: Exception) -> bool:
    """Other credentials may be there meanwhile."""
    is_lacking = isinstance(failure, (*_NO_CREDENTIALS, *_NOT_LOGGED_IN))
    return is_lacking or _code_of(failure) in _EXPIRED_CODES | _REFUSED_KEY_CODES


def is_told_by_status_alone(failure: Exception) -> bool:
    """An answer to HEAD has no body: its code is the status again."""
    return 400 <= status_of(failure) < 500 and _code_of(failure) in ("", str(status_of(failure)))


def _error_for_answer(failure: botocore_exceptions.ClientError, asked: Asked) -> ColdlogError:
    status, code = status_of(failure), _code_of(failure)
    if status in _RETRIABLE_STATUS or code in _RETRIABLE_CODES:
        return _retriable(asked, f"was answered {_shown(failure)}")
    credentials = _credentials_error(failure, asked)
    if credentials is not None:
        return credentials
    if code == "NoSuchBucket":
        return _no_bucket(asked)
    if not asked.object_name:
        return _listing_error(failure, asked)
    if asked.is_write:
        return _write_error(failure, asked)
    return _object_error(failure, asked)


def _credentials_error(failure: botocore_exceptions.ClientError, asked: Asked) -> UsageError | None:
    code, status = _code_of(failure), status_of(failure)
    if code in _EXPIRED_CODES:
        return UsageError(
            f"the credentials for {asked.uri} have expired ({code}); renew them: {_WHERE_CREDENTIALS_ARE}"
        )
    if code in _REFUSED_KEY_CODES:
        return UsageError(
            f"the credentials for {asked.uri} are not accepted ({code}); correct {_WHERE_CREDENTIALS_ARE}; a signature "
            "does not match either where a proxy changes the request"
        )
    if code == "RequestTimeTooSkewed":
        return UsageError(f"S3 refuses requests for {asked.uri}: the clock of this machine is wrong ({code}); set it")
    if code in _REGION_CODES or status in (301, 302, 307, 308):
        region = _region_of(failure)
        where = f" ({region})" if region else ""
        return UsageError(
            f"the bucket {asked.bucket} is in another region{where}; set AWS_REGION, or the endpoint "
            f"({endpoint_setting()}) of that region [{_shown(failure)}]"
        )
    return None


def _listing_error(failure: botocore_exceptions.ClientError, asked: Asked) -> ColdlogError:
    if status_of(failure) == 403:
        return UsageError(
            f"{asked.uri} may not be listed ({_shown(failure)}): allow s3:ListBucket on the bucket {asked.bucket} to "
            f"the principal of {_WHERE_CREDENTIALS_ARE}"
        )
    if status_of(failure) == 404 and _code_of(failure) in _MISSING_CODES:
        return _no_bucket(asked)
    return UsageError(f"{asked.uri} cannot be listed: S3 answers {_shown(failure)}")


def _no_bucket(asked: Asked) -> UsageError:
    return UsageError(f"no bucket {asked.bucket}: correct {asked.uri}, or the endpoint ({endpoint_setting()})")


def _write_error(failure: botocore_exceptions.ClientError, asked: Asked) -> UsageError:
    if status_of(failure) == 403:
        return UsageError(
            f"{asked.what} may not be written ({_shown(failure)}): allow s3:PutObject, s3:DeleteObject and "
            f"s3:AbortMultipartUpload on the bucket {asked.bucket} to the principal of {_WHERE_CREDENTIALS_ARE}"
        )
    return UsageError(f"{asked.what} cannot be written: S3 answers {_shown(failure)}")


def _object_error(failure: botocore_exceptions.ClientError, asked: Asked) -> ColdlogError:
    status, code, name = status_of(failure), _code_of(failure), printable_name(asked.object_name)
    if status == 404 and code not in _MISSING_CODES:
        return UsageError(f"{asked.what} cannot be asked for: S3 answers {_shown(failure)}")
    if status == 404:
        return ArchiveError(Reason.OBJECT_MISSING, "the archive has no such object", object_name=name)
    if status == 412:
        return replaced(asked)
    message, expected = "object cannot be read", ""
    if code == "InvalidObjectState":
        message, expected = "object lies in a cold storage class", "an object that was restored"
    elif status == 403:
        expected = (
            f"permission s3:GetObject, and kms:Decrypt for an encrypted object; or the object is gone, which S3 says "
            f"only to whom it allows s3:ListBucket; for the principal of {_WHERE_CREDENTIALS_ARE}"
        )
    return ArchiveError(
        Reason.OBJECT_UNREADABLE, message, object_name=name, expected=expected, found=f"S3 answers {_shown(failure)}"
    )


def _error_for_exception(failure: Exception, asked: Asked) -> ColdlogError:
    kind = type(failure).__name__
    if isinstance(failure, _NO_CREDENTIALS):
        return UsageError(f"no credentials for {asked.uri}: give {_WHERE_CREDENTIALS_ARE}")
    if isinstance(failure, _NOT_LOGGED_IN):
        return UsageError(f"the login that the credentials for {asked.uri} come from has ended ({kind}); log in anew")
    if isinstance(failure, botocore_exceptions.ProfileNotFound):
        return UsageError(f"the profile that AWS_PROFILE names is in no AWS configuration file; needed for {asked.uri}")
    if isinstance(failure, botocore_exceptions.SSLError):
        return UsageError(f"the endpoint of {asked.uri} shows no certificate that is trusted here; see AWS_CA_BUNDLE")
    if isinstance(failure, BodyCutError):
        return _retriable(asked, "was answered with a body cut short")
    if isinstance(failure, _NO_ANSWER):
        return _retriable(asked, f"got no answer ({kind}){_from_whom(failure)}")
    if isinstance(failure, _NOT_FETCHED):
        return _retriable(asked, f"needs credentials that could not be fetched ({kind})")
    return UsageError(
        f"{asked.uri} cannot be asked: {kind}; see the AWS variables of the environment and the AWS configuration files"
    )


def _retriable(asked: Asked, what: str) -> RetriableError:
    return RetriableError(f"the request for {asked.what} {what}; it may succeed when tried again")


def _damage_of(failure: Exception) -> str:
    """What is wrong with an answer that came whole; empty where none came, or nothing is wrong with it."""
    if isinstance(failure, DamagedAnswerError):
        return str(failure)
    if isinstance(failure, botocore_exceptions.FlexibleChecksumError):
        return "a body that does not match its checksum"
    # botocore's parser raises what int, datetime and its own code do; a ValueError of a setting is met outside of it.
    modules = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(failure.__traceback__))
    return f"what cannot be read as S3's ({type(failure).__name__})" if "botocore.parsers" in modules else ""


def _from_whom(failure: Exception) -> str:
    """Who was asked: a wrong endpoint looks like one that is down."""
    if isinstance(failure, botocore_exceptions.ProxyConnectionError):
        return ""
    url = getattr(failure, "kwargs", {}).get("endpoint_url", "")
    address = shown_address(str(url)) if url else endpoint_address()
    return f" from {address}; if that is not the S3 meant, correct {endpoint_setting()}" if address else ""


def _code_of(failure: Exception) -> str:
    if not isinstance(failure, botocore_exceptions.ClientError):
        return ""
    return str(failure.response.get("Error", {}).get("Code", ""))


def _shown(failure: Exception) -> str:
    code = _code_of(failure)
    return f"HTTP {status_of(failure)} {code}".rstrip() if _IDENTIFIER.fullmatch(code) else f"HTTP {status_of(failure)}"


def _region_of(failure: botocore_exceptions.ClientError) -> str:
    headers = failure.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or failure.response.get("Error", {}).get("Region", "")
    return region if isinstance(region, str) and _REGION.fullmatch(region) else ""
