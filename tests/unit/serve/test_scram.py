"""Does SCRAM follow its RFCs, and refuse whatever else comes?"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import UsageError
from coldlog.serve.security.scram import (
    AuthenticationError,
    Credential,
    ScramExchange,
    hash_password,
    parse_client_first,
    parse_credential,
)
from coldlog.serve.security.users import Users, read_users, write_user

_MECHANISM = "SCRAM-SHA-256"
# The example of RFC 7677, section 3.
_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
_CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
_LAST = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _credential(password: str = "pencil") -> Credential:
    return hash_password(password, _MECHANISM, salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096)


def _exchange(password: str = "pencil") -> ScramExchange:
    return ScramExchange(parse_client_first(_FIRST), _credential(password), _SERVER_NONCE)


def test_the_example_of_the_rfc_is_answered_as_it_says() -> None:
    exchange = _exchange()
    assert exchange.challenge() == _CHALLENGE
    assert exchange.finish(_LAST) == _SIGNATURE


def test_another_password_nonce_or_binding_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="wrong user or password"):
        _exchange("pen").finish(_LAST)
    for unfit in (_LAST.replace(b"rOpr", b"rOpp"), _LAST.replace(b"biws", b"eSws"), _LAST[:-4], b"", b"\xff"):
        with pytest.raises(AuthenticationError):
            _exchange().finish(unfit)


@given(st.binary(max_size=80), st.integers(0, len(_FIRST)))
def test_any_bytes_are_read_or_refused(content: bytes, kept: int) -> None:
    for message in (content, _FIRST[:kept] + content):
        try:
            parse_client_first(message)
        except AuthenticationError:
            continue
    with pytest.raises(AuthenticationError):
        _exchange().finish(_LAST[: kept + 8] + content)


def test_a_name_may_have_the_characters_that_scram_escapes() -> None:
    assert parse_client_first(b"n,,n=a=2Cb=3Dc,r=nonce").user == "a,b=c"


def test_a_credential_is_read_as_it_was_written() -> None:
    credential = _credential()
    assert parse_credential(str(credential), _MECHANISM) == credential
    for unfit in ("", "1:" + str(credential).partition(":")[2], str(credential)[:-8], f"{credential}:AAAA"):
        with pytest.raises(ValueError):  # noqa: PT011 - of several functions
            parse_credential(unfit, _MECHANISM)


def test_users_are_read_from_the_file_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(write_user('a "b" \\c', "secret") + "\n" + write_user("d", "other"))
    users = read_users(str(path))
    assert "secret" not in path.read_text()
    assert users.has_password('a "b" \\c', "secret")
    assert not users.has_password("d", "secret")
    assert not users.has_password("nobody", "secret")


def test_an_unknown_user_is_asked_for_a_proof_like_a_known_one() -> None:
    users = Users({"known": {_MECHANISM: _credential()}})
    first, second = (users.credential("nobody", _MECHANISM) for _ in range(2))
    assert (first.salt, first.iterations, len(first.salt)) == (second.salt, 4096, len(_credential().salt))
    assert first.salt != users.credential("else", _MECHANISM).salt


@pytest.mark.parametrize("content", ["", "[", "a = 1", "[a]", '[a]\nMD5 = "x"', '[a]\nSCRAM-SHA-256 = "4096:a:b:c"'])
def test_a_file_without_users_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(content)
    with pytest.raises(UsageError):
        read_users(str(path))


def test_a_file_of_users_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    with pytest.raises(UsageError) as refused:
        read_users(str(path))
    assert str(refused.value) == (
        f"the users cannot be read from {path}: No such file or directory; correct serve.users"
    )
