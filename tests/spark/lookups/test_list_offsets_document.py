"""docs/reference/list-offsets.md names every special timestamp, and its Python runs."""

from __future__ import annotations

import re
import textwrap

from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.runtime.installation import ROOT

DOCUMENT = (ROOT / "docs" / "reference" / "list-offsets.md").read_text(encoding="utf-8")


def test_special_timestamps_are_those_of_requests() -> None:
    rows = re.findall(r"^\| (-\d) \| `([\w-]+)` \| (\d+) \|", DOCUMENT, re.MULTILINE)
    assert {int(number): (name, int(since)) for number, name, since in rows} == {
        each.value: (each.name.lower().replace("_", "-"), each.since_version) for each in SpecialTimestamp
    }


def test_python_example_of_the_page_runs(golden_uri: str) -> None:
    (block,) = re.findall(r"((?:^    .*\n|^\n)*^    from coldlog.*\n(?:^    .*\n|^\n)*)", DOCUMENT, re.MULTILINE)
    program = (
        textwrap.dedent(block)
        .replace('"/data/coldlog"', repr(golden_uri))
        .replace("    reader.", "    answers = reader.")
    )
    names: dict[str, object] = {}
    exec(program, names)
    answers = names["answers"]
    assert isinstance(answers, list)
    assert [row["error"] for row in answers] == ["NONE", "NONE"]
