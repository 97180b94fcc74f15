"""Test that a listing is what botocore makes of the same answer, also if the answer is not as expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

import pytest
from botocore.parsers import ResponseParserError, create_parser
from botocore.session import Session
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.stores.s3_listing_parser import take_entries

_SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_MODEL = Session().get_service_model("s3").operation_model("ListObjectsV2")
_WANTED = ("Key", "Size", "LastModified")


def _entry(key: str = "p/log", size: str = "7", modified: str = "2026-02-23T03:21:42.000Z") -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>&quot;ab&quot;</ETag>"
        f"<Size>{size}</Size><Owner><ID>x</ID></Owner><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _listing(*entries: str, space: str = _SPACE, root: str = "ListBucketResult") -> str:
    rest = (
        "<Name>arc</Name><Prefix>p/</Prefix><KeyCount>2</KeyCount><Delimiter>/</Delimiter><EncodingType>url</EncodingType>"
        "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
        "<CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes>"
    )
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}{space}>{rest}{"".join(entries)}</{root}>'


def _answer(body: str, status: int = 200) -> dict[str, Any]:
    return {"status_code": status, "headers": {"x-amz-request-id": "7"}, "body": body.encode()}


def _parsed(answer: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = create_parser("rest-xml").parse(answer, _MODEL.output_shape)
    return found


def _with_entries_taken(answer: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What botocore returns with the handler, and whether this has taken the entries."""
    taken: dict[str, Any] = {}
    take_entries(answer, taken)
    return _parsed(answer) | taken, bool(taken)


def _listed(parsed: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(entry.get(name) for name in _WANTED) for entry in parsed.get("Contents", ())]


def _others(parsed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parsed.items() if name != "Contents"}


_KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="￾￿"))
_TIMES = st.sampled_from(["2026-02-23T03:21:42.000Z", "1970-01-01T00:00:00Z", "2262-01-01T23:59:59.999999Z"])


@given(st.lists(st.tuples(_KEYS.filter(str.strip), st.integers(0, 2**50), _TIMES), min_size=1, max_size=4))
def test_entries_and_all_else_are_botocores(entries: list[tuple[str, int, str]]) -> None:
    for space in (_SPACE, ""):
        body = _listing(*(_entry(key, str(size), modified) for key, size, modified in entries), space=space)
        expected = _parsed(_answer(body))
        found, is_taken = _with_entries_taken(_answer(body))
        assert is_taken
        assert _listed(found) == _listed(expected)
        assert len(_listed(found)) == len(entries)
        assert _others(found) == _others(expected)


@pytest.mark.parametrize(
    "body",
    [
        _listing(),
        _listing(_entry(), _entry().replace("<Size>7</Size>", "")),
        _listing(_entry(), _entry().replace("<Key>p/log</Key>", "")),
        _listing(_entry(modified="Mon, 23 Feb 2026 03:21:42 GMT")),
        _listing(_entry(modified="2026-02-23T03:21:42.000+02:00")),
        _listing(_entry(), _entry().replace("<Contents>", '<Contents xmlns="other">')),
        _listing(_entry(), root="html", space=""),
        "<html><body>log in</body></html>",
        "<Error><Code>AccessDenied</Code></Error>",
    ],
)
def test_an_answer_that_is_not_as_expected_is_left_to_botocore(body: str) -> None:
    found, _ = _with_entries_taken(_answer(body))
    expected = _parsed(_answer(body))
    assert _listed(found) == _listed(expected)
    assert _others(found) == _others(expected)


_TWO_SIZES = _entry().replace("<Size>", "<Size>1</Size><Size>")
_REFUSED = ["", "no XML", _listing(_entry())[:-20], _listing(_entry(size="seven")), _listing(_TWO_SIZES)]


@pytest.mark.parametrize("body", _REFUSED)
def test_an_answer_that_botocore_refuses_is_refused(body: str) -> None:
    try:
        expected = _listed(_parsed(_answer(body)))
    except (ResponseParserError, ValueError, TypeError) as refused:
        with pytest.raises(type(refused)):
            _with_entries_taken(_answer(body))
    else:
        assert _listed(_with_entries_taken(_answer(body))[0]) == expected == []


def test_the_body_of_an_error_is_not_touched() -> None:
    answer = _answer(_listing(_entry()), status=503)
    taken: dict[str, Any] = {}
    take_entries(answer, taken)
    assert answer == _answer(_listing(_entry()), status=503)
    assert not taken
