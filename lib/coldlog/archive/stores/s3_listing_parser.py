"""Take the keys of a listing out of S3's answer before botocore parses it.

botocore walks its model of the answer for each field of each key, which takes most of the time of a long listing. This
module parses the XML once, by expat, takes the entries out, and leaves the rest to botocore: errors, tokens, prefixes.
An answer that it does not understand, it leaves as it is; botocore then parses all of it, or says what is wrong.

`take_entries` is a handler of botocore's event `before-parse`, which botocore uses itself for fields that it parses in
its own way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

LISTING_EVENT = "before-parse.s3.ListObjectsV2"
_NAMESPACE = re.compile(r"\{[^}]*\}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_ENTRY, _WANTED = "Contents", ("Key", "LastModified", "Size")


def take_entries(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Move the entries from the body of `response_dict` into `customized_response_dict`, as botocore returns them, with
    `Key`, `LastModified` and `Size` only."""
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])
        namespace = _NAMESPACE.match(root.tag)
        prefix = "" if namespace is None else namespace[0]
        entries = root.findall(prefix + _ENTRY)
        found = list(_iter_entries(entries, [prefix + name for name in _WANTED]))
    except (ElementTree.ParseError, ValueError, AttributeError, TypeError):
        return
    if not found or len(found) != sum(child.tag.endswith(_ENTRY) for child in root):
        return
    for entry in entries:
        root.remove(entry)
    response_dict["body"] = ElementTree.tostring(root)
    customized_response_dict[_ENTRY] = found


def _iter_entries(entries: list[ElementTree.Element], tags: list[str]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        wanted = [(child.tag, child.text or "") for child in entry if child.tag in tags]
        found = dict(wanted)
        if len(wanted) != len(tags) or len(found) != len(tags) or not _TIME.fullmatch(found[tags[1]]):
            raise ValueError(wanted)
        yield {
            "Key": found[tags[0]],
            "LastModified": datetime.fromisoformat(found[tags[1]]),
            "Size": int(found[tags[2]]),
        }
