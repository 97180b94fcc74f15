"""Test that comments of columns name what the code writes."""

from __future__ import annotations

from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX


def test_the_comment_of_the_codec_names_every_codec() -> None:
    (comment,) = [column.comment for column in OFFSET_INDEX.columns if column.name == "codec"]
    assert comment.replace(" or ", ", ").split(", ") == list(CODEC_NAMES)
