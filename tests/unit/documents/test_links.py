"""The checker of the documents finds broken links, stale references and pages that are in no menu."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.links import REPOSITORY, check_documents, check_navigation, check_sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small checkout without a fault."""
    for name, text in {
        "README.md": "# Small\n\nSee [guide](docs/guide.md#second-step).\n",
        "Makefile": "test:\n",
        "mkdocs.yml": "nav:\n  - guide.md\n",
        "docs/guide.md": "# Guide\n\n## Second step\n\n`make test`, `jobs/scan.py`, `coldlog.index.stairs`\n",
        "jobs/scan.py": '"""See docs/guide.md."""\n',
        "lib/coldlog/index/stairs.py": "STAIR = 1\n\ndef find_stair() -> None: ...\n",
        "lib/coldlog/tables/definitions/segments.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def found_with(root: Path, line: str) -> list[str]:
    """Findings when the guide has this line too."""
    page = root / "docs" / "guide.md"
    page.write_text(page.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    return list(check_documents(root))


def test_documents_of_this_checkout_have_no_fault() -> None:
    assert [*check_documents(REPOSITORY), *check_sources(REPOSITORY), *check_navigation(REPOSITORY)] == []


@pytest.mark.parametrize(
    "line",
    [
        "[up](#guide) [out](https://kafka.apache.org/)",
        "`coldlog.index.stairs.find_stair`, `coldlog.segments`, `index/stairs.py`, `lib/coldlog/index`",
        "    ./spark-submit.sh scan --set archive.uri=/mnt --set spark.executor.memory=8g",
        "    from coldlog.index.stairs import STAIR, find_stair",
        "```\n[no link](in/code.md)\n```",
    ],
)
def test_what_exists_is_not_reported(root: Path, line: str) -> None:
    assert found_with(root, line) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[gone](gone.md)", "broken link: there is no gone.md"),
        ("[gone](#third-step)", "broken link: guide.md has no heading #third-step"),
        ("[out](../README.md)", "the site has no ../README.md: write the path as code, not as a link"),
        ("`jobs/gone.py`", "there is no jobs/gone.py"),
        ("`index/gone.py`", "there is no index/gone.py"),
        ("`coldlog.index.gone`", "there is no coldlog.index.gone"),
        ("`coldlog.index.stairs.gone`", "there is no coldlog.index.stairs.gone"),
        ("`make gone`", "there is no make target gone"),
        ("    ./spark-submit.sh gone_job --set archive.uri=/mnt", "there is no job gone_job"),
        ("    ./spark-submit.sh scan --set archive.gone=/mnt", "there is no setting archive.gone"),
        ("    from coldlog.index.stairs import GONE", "there is no coldlog.index.stairs.GONE"),
    ],
)
def test_what_is_gone_is_reported_with_its_line(root: Path, line: str, problem: str) -> None:
    assert found_with(root, line) == [f"docs/guide.md:6: {problem}"]


def test_anchor_of_another_page_is_looked_up_there(root: Path) -> None:
    (root / "docs" / "guide.md").write_text("# Guide\n", encoding="utf-8")
    assert list(check_documents(root)) == ["README.md:3: broken link: docs/guide.md has no heading #second-step"]


def test_source_that_names_a_page_which_is_gone_is_reported(root: Path) -> None:
    (root / "jobs" / "scan.py").write_text('"""Scan.\n\nSee docs/gone.md.\n"""\n', encoding="utf-8")
    assert list(check_sources(root)) == ["jobs/scan.py:3: there is no docs/gone.md"]


def test_program_that_names_a_module_which_moved_is_reported(root: Path) -> None:
    text = 'STAIRS = "lib/coldlog/stairs.py"\nHERE = "lib/coldlog/index/stairs.py", "build/lib/coldlog/gone.py"\n'
    (root / "environment.py").write_text(text, encoding="utf-8")
    assert list(check_sources(root)) == ["environment.py:1: there is no lib/coldlog/stairs.py"]


def test_page_in_no_menu_and_menu_without_page_are_reported(root: Path) -> None:
    (root / "mkdocs.yml").write_text("nav:\n  - other.md\n", encoding="utf-8")
    assert list(check_navigation(root)) == [
        "mkdocs.yml: there is no docs/other.md",
        "mkdocs.yml: docs/guide.md is in no menu",
    ]
