"""Authenticate one connection with SaslHandshake and SaslAuthenticate.

Until it is, nothing else is answered but ApiVersions. A failure is answered after a pause, and ends the connection.
"""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.messages import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    MalformedRequestError,
    Request,
)
from coldlog.serve.security.rights import ALL_RIGHTS, NO_RIGHTS, Rights
from coldlog.serve.security.scram import DIGESTS, AuthenticationError, ScramExchange, parse_client_first

_PLAIN = "PLAIN"
_PAUSE_S = 0.1
"""As connection.failed.authentication.delay.ms is by default."""


class Session:
    """The authentication of one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mechanism: str | None = None
        self._exchange: ScramExchange | None = None
        self._user = ""
        self.user: str | None = None
        """Who it is; None until that is known."""
        self._has_failed = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is answered: the client was refused, or the endpoint stops."""
        return self._has_failed or self._context.is_stopping

    @property
    def rights(self) -> Rights:
        """What the client may use, as the users' file has it now."""
        users = self._context.users
        if users is None:
            return ALL_RIGHTS
        return NO_RIGHTS if self.user is None else users.rights(self.user)

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated, or need not."""
        return self._context.users is None or self.user is not None

    def check(self, api_key: int) -> None:
        """Raise `MalformedRequestError` if this client may not ask this yet. Its request has not been read yet."""
        if not self.is_known and api_key not in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
            raise MalformedRequestError(f"API key {api_key} before the client has authenticated")

    async def answer(self, request: Request) -> Values:
        """Answer a SaslHandshake or SaslAuthenticate."""
        if request.api_key == SASL_HANDSHAKE:
            return self._shake_hands(request.body.mechanism)
        try:
            content = await self._authenticate(bytes(request.body.auth_bytes))
        except AuthenticationError as refused:
            self._has_failed = True
            self._context.metrics.unauthenticated.inc()
            await asyncio.sleep(_PAUSE_S)
            return {
                "error_code": ErrorCode.sasl_authentication_failed,
                "error_message": f"authentication failed: {refused}",
                "auth_bytes": b"",
            }
        return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": content}

    def _shake_hands(self, mechanism: str) -> Values:
        error = ErrorCode.none
        if self._context.users is None or self.user is not None or self._exchange is not None:
            error = ErrorCode.illegal_sasl_state
        elif mechanism not in self._context.mechanisms:
            error = ErrorCode.unsupported_sasl_mechanism
        else:
            self._mechanism = mechanism
        self._has_failed = error is not ErrorCode.none
        return {"error_code": error, "mechanisms": list(self._context.mechanisms)}

    async def _authenticate(self, message: bytes) -> bytes:
        if self._context.users is None or self._mechanism is None or self.user is not None:
            raise AuthenticationError("no mechanism was chosen, or the client is known already")
        if self._mechanism == _PLAIN:
            self.user = await self._check_password(message)
            return b""
        if self._exchange is None:
            first = parse_client_first(message)
            self._user = first.user
            self._exchange = ScramExchange(first, self._context.users.credential(first.user, self._mechanism))
            return self._exchange.challenge()
        signature = self._exchange.finish(message)
        self.user = self._user
        return signature

    async def _check_password(self, message: bytes) -> str:
        """Check the message of PLAIN (RFC 4616): who to act as, user, password, with zeros between."""
        users = self._context.users
        assert users is not None
        try:
            acting_as, user, password = message.decode().split("\0")
        except ValueError as unfit:
            raise AuthenticationError("not a message of PLAIN") from unfit
        if acting_as not in ("", user) or not await self._context.look_up(lambda: users.has_password(user, password)):
            raise AuthenticationError("wrong user or password")
        return user


def mechanisms(*, is_private: bool) -> tuple[str, ...]:
    """Return what is offered: PLAIN, which sends the password as it is, only where nobody listens."""
    return (*DIGESTS, *((_PLAIN,) if is_private else ()))
